/* The plain body: one epoll set, level triggered, which is what loop.h promises already. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "daemon/loop_body.h"
#include "shm/doorbell.h"

#define EVENTS_MAX 64

struct loop_epoll {
    struct loop base;
    int fd, n_ready;
    struct epoll_event ready[EVENTS_MAX]; /* that a wait found, and nobody was told of */
};

static void epoll_free(struct loop *l)
{
    struct loop_epoll *e = (struct loop_epoll *)l;
    close(e->fd);
    loop_fini(l);
    free(e);
}

static int epoll_arm(struct loop *l, uint32_t idx, bool is_new)
{
    struct loop_epoll *e = (struct loop_epoll *)l;
    const struct loop_slot *s = &l->slots[idx];
    struct epoll_event event = {.data.u64 = (uint64_t)s->gen << 32 | idx};
    event.events = (s->watch->events & LOOP_READ ? EPOLLIN | EPOLLRDHUP : 0u) |
                   (s->watch->events & LOOP_WRITE ? EPOLLOUT : 0u);
    int op = is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
    return epoll_ctl(e->fd, op, s->watch->fd, &event) < 0 ? -errno : 0;
}

static void epoll_disarm(struct loop *l, uint32_t idx)
{
    struct loop_epoll *e = (struct loop_epoll *)l;
    (void)epoll_ctl(e->fd, EPOLL_CTL_DEL, l->slots[idx].watch->fd, NULL);
}

static bool epoll_wait_ready(struct loop *l, uint64_t timeout_ns)
{
    struct loop_epoll *e = (struct loop_epoll *)l;
    struct timespec ts = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                          .tv_nsec = (long)(timeout_ns % 1000000000u)};
    int n =
        epoll_pwait2(e->fd, e->ready, EVENTS_MAX, timeout_ns == LOOP_FOREVER ? NULL : &ts, NULL);
    /* Before 5.11, or a filter of system calls that does not know it: whole milliseconds, rounded
     * up. */
    if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
        uint64_t ms = timeout_ns / 1000000u + (timeout_ns % 1000000u != 0);
        n = epoll_wait(e->fd, e->ready, EVENTS_MAX, ms > 3600000u ? 3600000 : (int)ms);
    }
    e->n_ready = n > 0 ? n : 0;
    return n > 0;
}

static void epoll_tell(struct loop *l)
{
    struct loop_epoll *e = (struct loop_epoll *)l;
    if (e->n_ready == 0)
        (void)epoll_wait_ready(l, 0);
    int n = e->n_ready;
    e->n_ready = 0;
    for (int i = 0; i < n; i++) {
        uint32_t got = e->ready[i].events;
        loop_ready(l, (uint32_t)e->ready[i].data.u64, (uint32_t)(e->ready[i].data.u64 >> 32),
                   (got & EPOLLIN ? (uint32_t)LOOP_READ : 0u) |
                       (got & EPOLLOUT ? (uint32_t)LOOP_WRITE : 0u) |
                       (got & (EPOLLHUP | EPOLLERR | EPOLLRDHUP) ? (uint32_t)LOOP_HUP : 0u));
    }
}

static void epoll_ring(struct loop *l, const uint32_t *idxs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct loop_slot *s = &l->slots[idxs[i]];
        loop_rung(l, idxs[i], s->gen, cb_doorbell_send(s->watch->fd, CB_RECORD_BELL));
    }
}

static const struct loop_ops epoll_ops = {
    .name = "epoll",
    .free = epoll_free,
    .arm = epoll_arm,
    .disarm = epoll_disarm,
    .wait = epoll_wait_ready,
    .tell = epoll_tell,
    .ring = epoll_ring,
};

int loop_epoll_new(struct loop **loopp, uint32_t n_watches, const struct clock *clock,
                   struct log *log)
{
    struct loop_epoll *e = calloc(1, sizeof *e);
    if (!e)
        return -ENOMEM;
    e->fd = epoll_create1(EPOLL_CLOEXEC);
    int r = e->fd < 0 ? -errno : loop_init(&e->base, &epoll_ops, n_watches, clock, log);
    if (r) {
        if (e->fd >= 0)
            close(e->fd);
        free(e);
        return r;
    }
    *loopp = &e->base;
    return 0;
}
