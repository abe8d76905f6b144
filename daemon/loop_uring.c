/* io_uring: arming, disarming and all bells of a step are entries of one submission, and a turn of
 * a busy loop looks at the completion queue without any system call.
 *
 * Polls are one-shot and armed again after their handler ran. A multishot poll tells of edges only:
 * a handler that leaves something unread, which loop.h allows, would never hear of it again, and
 * the kernel may end a multishot at any time anyway. Arming anew looks at the level. Entries carry
 * the slot, its generation and their kind, so that late completions of removed watches mean
 * nothing. */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/loop_body.h"
#include "shm/doorbell.h"

#define ENTRIES_LEAST 256u
#define CQES_MAX      64u

enum { KIND_POLL = 1, KIND_REMOVE = 2, KIND_SEND = 3 };

struct loop_uring {
    struct loop base;
    struct io_uring ring;
    uint64_t *armed;   /* [n_slots] the user data of the slot's poll, 0: none */
    uint32_t *again;   /* slots whose handler ran and that want arming */
    uint8_t *is_again; /* [n_slots] */
    uint32_t n_again;
    struct cb_plain_record bell;
};

static uint64_t tag(int kind, uint32_t gen, uint32_t idx)
{
    return (uint64_t)kind << 56 | (uint64_t)(gen & LOOP_GEN_MASK) << 32 | idx;
}

static void uring_free(struct loop *l)
{
    struct loop_uring *u = (struct loop_uring *)l;
    io_uring_queue_exit(&u->ring);
    free(u->armed);
    free(u->again);
    free(u->is_again);
    loop_fini(l);
    free(u);
}

/* An entry to fill; a full queue is submitted first. NULL only if the kernel takes nothing. */
static struct io_uring_sqe *uring_sqe(struct loop_uring *u)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) {
        (void)io_uring_submit(&u->ring);
        sqe = io_uring_get_sqe(&u->ring);
    }
    return sqe;
}

static int uring_poll_add(struct loop_uring *u, uint32_t idx)
{
    const struct loop_slot *s = &u->base.slots[idx];
    struct io_uring_sqe *sqe = uring_sqe(u);
    if (!sqe)
        return -EBUSY;
    unsigned mask = (s->watch->events & LOOP_READ ? POLLIN | POLLRDHUP : 0u) |
                    (s->watch->events & LOOP_WRITE ? POLLOUT : 0u);
    io_uring_prep_poll_add(sqe, s->watch->fd, mask);
    u->armed[idx] = tag(KIND_POLL, s->gen, idx);
    io_uring_sqe_set_data64(sqe, u->armed[idx]);
    return 0;
}

static void uring_again(struct loop_uring *u, uint32_t idx)
{
    if (!u->is_again[idx]) {
        u->is_again[idx] = 1;
        u->again[u->n_again++] = idx;
    }
}

/* A poll that could not be armed is tried again before the next wait. */
static void uring_arm_all(struct loop_uring *u)
{
    uint32_t n = u->n_again, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t idx = u->again[i];
        bool wanted = u->base.slots[idx].watch && !u->armed[idx];
        if (wanted && uring_poll_add(u, idx) < 0)
            u->again[kept++] = idx;
        else
            u->is_again[idx] = 0;
    }
    u->n_again = kept;
}

static void uring_remove(struct loop_uring *u, uint32_t idx)
{
    struct io_uring_sqe *sqe = u->armed[idx] ? uring_sqe(u) : NULL;
    if (sqe) {
        io_uring_prep_poll_remove(sqe, u->armed[idx]);
        io_uring_sqe_set_data64(sqe, tag(KIND_REMOVE, 0, idx));
    }
    u->armed[idx] = 0;
}

static int uring_arm(struct loop *l, uint32_t idx, bool is_new)
{
    struct loop_uring *u = (struct loop_uring *)l;
    if (!is_new) {
        /* The old poll's completion must not be taken for the new one's: another generation. */
        uring_remove(u, idx);
        l->slots[idx].gen = (l->slots[idx].gen + 1) & LOOP_GEN_MASK;
    }
    uring_again(u, idx);
    return 0;
}

/* The poll holds the file open until it is removed, so removal is submitted now: who closes the
 * descriptor next expects the peer to see it. */
static void uring_disarm(struct loop *l, uint32_t idx)
{
    struct loop_uring *u = (struct loop_uring *)l;
    if (u->armed[idx]) {
        uring_remove(u, idx);
        (void)io_uring_submit(&u->ring);
    }
}

static uint32_t poll_events(int result)
{
    if (result < 0)
        return LOOP_HUP;
    return (result & POLLIN ? (uint32_t)LOOP_READ : 0u) |
           (result & POLLOUT ? (uint32_t)LOOP_WRITE : 0u) |
           (result & (POLLHUP | POLLERR | POLLRDHUP) ? (uint32_t)LOOP_HUP : 0u);
}

/* By its number: liburing's shared object has no such calls before 2.4. */
static long ring_register(struct loop_uring *u, unsigned what, void *items, unsigned n)
{
    return syscall(SYS_io_uring_register, u->ring.ring_fd, what, items, n);
}

/* All that can ever be asked of this ring, for a filter of system calls does not see inside. Kernels
 * before 5.10 can't say so, and are too old anyway. */
static int uring_restrict(struct loop_uring *u)
{
    static const uint8_t ops[] = {IORING_OP_POLL_ADD, IORING_OP_POLL_REMOVE, IORING_OP_SEND};
    struct io_uring_restriction allowed[sizeof ops] = {{0}};
    for (size_t i = 0; i < sizeof ops; i++)
        allowed[i] =
            (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_OP, .sqe_op = ops[i]};
    if (ring_register(u, IORING_REGISTER_RESTRICTIONS, allowed, sizeof ops) < 0 ||
        ring_register(u, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return -errno;
    return 0;
}

/* Handles what has completed. Completions are given back before handlers run, for these may
 * submit. */
static void uring_reap(struct loop_uring *u)
{
    struct io_uring_cqe *cqes[CQES_MAX];
    struct {
        uint64_t data;
        int result;
    } done[CQES_MAX];
    unsigned n = io_uring_peek_batch_cqe(&u->ring, cqes, CQES_MAX);
    for (unsigned i = 0; i < n; i++) {
        done[i].data = cqes[i]->user_data;
        done[i].result = cqes[i]->res;
    }
    io_uring_cq_advance(&u->ring, n);
    for (unsigned i = 0; i < n; i++) {
        uint32_t idx = (uint32_t)done[i].data;
        uint32_t gen = (uint32_t)(done[i].data >> 32) & LOOP_GEN_MASK;
        int kind = (int)(done[i].data >> 56);
        if (kind == KIND_SEND) {
            int r = done[i].result;
            loop_rung(&u->base, idx, gen, r == -EAGAIN || r > 0 ? 0 : r);
        } else if (kind == KIND_POLL && idx < u->base.n_slots && u->armed[idx] == done[i].data) {
            u->armed[idx] = 0;
            uring_again(u, idx);
            loop_ready(&u->base, idx, gen, poll_events(done[i].result));
        }
    }
}

static bool uring_wait(struct loop *l, uint64_t timeout_ns)
{
    struct loop_uring *u = (struct loop_uring *)l;
    struct io_uring_cqe *cqe;
    struct __kernel_timespec ts = {.tv_sec = (long long)(timeout_ns / 1000000000u),
                                   .tv_nsec = (long long)(timeout_ns % 1000000000u)};
    uring_arm_all(u);
    if (io_uring_cq_ready(&u->ring) == 0)
        (void)io_uring_submit_and_wait_timeout(&u->ring, &cqe, 1,
                                               timeout_ns == LOOP_FOREVER ? NULL : &ts, NULL);
    return io_uring_cq_ready(&u->ring) > 0;
}

static void uring_tell(struct loop *l)
{
    struct loop_uring *u = (struct loop_uring *)l;
    uring_arm_all(u);
    if (io_uring_sq_ready(&u->ring))
        (void)io_uring_submit(&u->ring);
    uring_reap(u);
}

static void uring_ring(struct loop *l, const uint32_t *idxs, uint32_t n)
{
    struct loop_uring *u = (struct loop_uring *)l;
    for (uint32_t i = 0; i < n; i++) {
        const struct loop_slot *s = &l->slots[idxs[i]];
        struct io_uring_sqe *sqe = uring_sqe(u);
        if (!sqe) {
            loop_rung(l, idxs[i], s->gen, -EBUSY);
            continue;
        }
        io_uring_prep_send(sqe, s->watch->fd, &u->bell, sizeof u->bell,
                           MSG_DONTWAIT | MSG_NOSIGNAL);
        io_uring_sqe_set_data64(sqe, tag(KIND_SEND, s->gen, idxs[i]));
    }
    /* MSG_DONTWAIT: every send is over when the submission is; its completion is read with the
     * rest, at the next turn, when an epoch that stayed unanswered is looked at again anyway. */
    (void)io_uring_submit(&u->ring);
}

static const struct loop_ops uring_ops = {
    .name = "io_uring",
    .free = uring_free,
    .arm = uring_arm,
    .disarm = uring_disarm,
    .wait = uring_wait,
    .tell = uring_tell,
    .ring = uring_ring,
};

/* The bells of all clients fit into one submission: of a client's two watches one is rung. */
static uint32_t entries_for(uint32_t n_watches)
{
    uint32_t n = ENTRIES_LEAST;
    while (n < n_watches / 2)
        n *= 2;
    return n;
}

int loop_uring_new(struct loop **loopp, uint32_t n_watches, const struct clock *clock,
                   struct log *log)
{
    struct loop_uring *u = calloc(1, sizeof *u);
    if (!u)
        return -ENOMEM;
    uint32_t entries = entries_for(n_watches);
    struct io_uring_params params = {.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE |
                                              IORING_SETUP_R_DISABLED,
                                     .cq_entries = 4 * entries};
    int r = io_uring_queue_init_params(entries, &u->ring, &params);
    if (r) {
        free(u);
        return r;
    }
    /* A timeout that travels with the wait, and completions that are never dropped: kernel 5.11. */
    if (!(params.features & IORING_FEAT_EXT_ARG) || !(params.features & IORING_FEAT_NODROP))
        r = -ENOTSUP;
    if (!r)
        r = uring_restrict(u);
    u->armed = calloc(n_watches, sizeof *u->armed);
    u->again = calloc(n_watches, sizeof *u->again);
    u->is_again = calloc(n_watches, sizeof *u->is_again);
    cb_record_plain(&u->bell, CB_RECORD_BELL);
    if (!r && (!u->armed || !u->again || !u->is_again))
        r = -ENOMEM;
    if (!r)
        r = loop_init(&u->base, &uring_ops, n_watches, clock, log);
    if (r) {
        io_uring_queue_exit(&u->ring);
        free(u->armed);
        free(u->again);
        free(u->is_again);
        free(u);
        return r;
    }
    *loopp = &u->base;
    return 0;
}
