/* client/connect.c - shakes hands with a daemon, maps the lane.
 *
 * Every number in WELCOME is checked before anything is mapped by it: a daemon of another build
 * must lead to a status, not to a crash. */
#include "client/internal.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/doorbell.h"

#define HANDSHAKE_MS  2000
#define SPIN_NS_MAX   50000ull
#define N_DESCRIPTORS 4 /* UP, DOWN, STATUS, VOCAB */

/* ---- the handshake --------------------------------------------------------------------------- */

static bool all_zero(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

static const char *name_of(const struct cb_options *options)
{
    return options->name ? options->name : program_invocation_short_name;
}

static int send_hello(const struct cb_handle *h, const struct cb_options *options)
{
    struct cb_hello hello = {
        .head = {CB_RECORD_MAGIC, CB_RECORD_HELLO, 0},
        .format_min = CB_FORMAT,
        .features = CB_FEATURES,
        .format_max = CB_FORMAT,
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .n_slots = options->n_slots,
        .wake = h->kind == CB_KIND_EVENT_LOOP ? CB_WAKE_SOCKET : CB_WAKE_FUTEX,
        .arena_bytes = options->arena_bytes,
        .pool_bytes = options->pool_bytes,
    };
    snprintf(hello.libc, sizeof(hello.libc), "glibc-%s", gnu_get_libc_version());
    snprintf(hello.name, sizeof(hello.name), "%s", name_of(options));
    /* Who hung up already may have said why: that is read next. */
    if (send(h->sock, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return cb_fail_errno("sending HELLO", errno);
    return 0;
}

/* One record with its descriptors, of which fds[] gets up to N_DESCRIPTORS, the rest -1. */
static int receive(int sock, void *record, int fds[N_DESCRIPTORS])
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * N_DESCRIPTORS)];
    } control;
    struct iovec piece = {record, CB_RECORD_BYTES};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int n_fds = 0;
    ssize_t n;

    for (int i = 0; i < N_DESCRIPTORS; i++)
        fds[i] = -1;
    for (;;) {
        if (!cb_await_answer(sock, HANDSHAKE_MS))
            return cb_fail_silent(sock, HANDSHAKE_MS / 1000);
        n = recvmsg(sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        /* ECONNRESET, told once: it closed without reading HELLO. A refusal may lie behind it. */
        if (n >= 0 || (errno != EAGAIN && errno != EINTR && errno != ECONNRESET))
            break;
    }
    if (n < 0)
        return cb_fail_errno("receiving WELCOME", errno);
    for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&message) : NULL; c;
         c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < k && n_fds < N_DESCRIPTORS; i++)
            memcpy(&fds[n_fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    if (n <= 0)
        return cb_fail_at("the daemon hung up during the handshake", CB_LOST, 0, 0);
    if (n != CB_RECORD_BYTES || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
        return cb_fail_at("the daemon's answer", CB_BAD_RECORD, 0, 0);
    return 0;
}

/* REFUSED in words: its status with its numbers. */
static int refused(const void *record)
{
    struct cb_refused r;
    memcpy(&r, record, sizeof(r));
    if (r.status >= 0)
        return cb_fail_at("the daemon's refusal", CB_BAD_RECORD, 0, 0);
    return cb_fail_at(r.status == CB_SYSTEM ? "the daemon refused, its log says why"
                                            : "the daemon refused",
                      r.status, r.detail[0], r.detail[1]);
}

static int check_welcome(const struct cb_welcome *w)
{
    if (w->head.magic != CB_RECORD_MAGIC || w->head.type != CB_RECORD_WELCOME || w->head.reserved ||
        !all_zero(w->reserved, sizeof(w->reserved)))
        return cb_fail_at("WELCOME", CB_BAD_RECORD, 0, 0);
    if (w->format != CB_FORMAT)
        return cb_fail(CB_VERSION);
    if (w->features & ~CB_FEATURES) /* these were offered */
        return cb_fail_at("WELCOME's features", CB_BAD_RECORD, 0, 0);
    if (w->defaults & ~(w->features & CB_FEATURE_DEFAULTS ? CB_DEFAULTS : 0u) ||
        (w->seed && !(w->defaults & CB_DEFAULT_SEED)))
        return cb_fail_at("WELCOME's defaults", CB_BAD_RECORD, 0, 0);
    if (cb_geometry_check(&w->geometry) || w->vocab_bytes > (uint64_t)1 << 40)
        return cb_fail_at("WELCOME's geometry", CB_BAD_RECORD, 0, 0);
    return 0;
}

static int map(struct cb_segment *s, int fd, size_t bytes, int writable)
{
    struct cb_why why;
    int r = cb_segment_map(s, fd, bytes, writable, &why);
    if (!r)
        return 0;
    cb_fail_at(why.text, r == -ENOMEM ? CB_NO_MEMORY : CB_BAD_RECORD, 0, 0);
    return r == -ENOMEM ? CB_NO_MEMORY : CB_BAD_RECORD;
}

static int attach(struct cb_handle *h, const struct cb_welcome *w, const int fds[N_DESCRIPTORS])
{
    const struct cb_geometry *g = &h->geometry;
    const struct cb_down_fixed *fixed;
    size_t name_bytes, lane_bytes;
    struct cb_piece *pieces;
    int r;

    h->geometry = w->geometry;
    h->lane_id = w->lane_id;
    h->features = w->features;
    h->defaults = w->defaults;
    if (w->defaults & CB_DEFAULT_SEED)
        h->seed_state = w->seed;
    for (int i = 0; i < N_DESCRIPTORS; i++)
        if (fds[i] < 0)
            return cb_fail_at("WELCOME's descriptors", CB_BAD_RECORD, 0, 0);
    r = map(&h->up, fds[0], g->up_bytes, 1);
    if (!r)
        r = map(&h->down, fds[1], g->down_bytes, 0);
    if (!r)
        r = map(&h->vocab_segment, fds[3], w->vocab_bytes, 0);
    if (r)
        return r;
    if (cb_vocab_attach(&h->vocab, h->vocab_segment.base, h->vocab_segment.bytes))
        return cb_fail_at("the daemon's vocabulary", CB_BAD_RECORD, 0, 0);

    lane_bytes = (cb_lane_client_bytes(g) + 127u) & ~(size_t)127u;
    h->lane_memory = aligned_alloc(128, lane_bytes);
    pieces = calloc(g->n_slots, sizeof(*pieces));
    h->held = calloc(g->n_slots, sizeof(*h->held));
    name_bytes = h->vocab.name_bytes;
    h->model_name = calloc(1, name_bytes + 1);
    if (!h->lane_memory || !pieces || !h->held || !h->model_name) {
        free(pieces);
        return cb_fail(CB_NO_MEMORY);
    }
    memset(h->lane_memory, 0, lane_bytes);
    memcpy(h->model_name, h->vocab.name, name_bytes);
    cb_arena_init(&h->arena, pieces, g->n_slots, g->up_arena_bytes, 8);
    r = cb_lane_client_init(&h->lane, h->lane_memory, g, h->up.base, h->down.base);
    fixed = h->down.base;
    if (r || fixed->lane_id != w->lane_id ||
        memcmp(fixed->boot_id, w->boot_id, sizeof(w->boot_id)) != 0)
        return cb_fail_at("the lane's head", CB_BAD_RECORD, 0, 0);
    h->spin_ns = (uint64_t)w->spin_us * 1000u;
    if (h->spin_ns > SPIN_NS_MAX)
        h->spin_ns = SPIN_NS_MAX;
    if (sysconf(_SC_NPROCESSORS_ONLN) <= 2) /* spinning would take the daemon's own core */
        h->spin_ns = 0;
    return 0;
}

int cb_connect_shake_hands(struct cb_handle *h, const struct cb_options *options)
{
    union {
        struct cb_welcome welcome;
        struct cb_record_head head;
    } record;
    int fds[N_DESCRIPTORS];
    int r = send_hello(h, options);
    if (r)
        return r;
    r = receive(h->sock, &record, fds);
    if (!r && record.head.magic == CB_RECORD_MAGIC && record.head.type == CB_RECORD_REFUSED)
        r = refused(&record);
    else if (!r)
        r = check_welcome(&record.welcome);
    if (!r)
        r = attach(h, &record.welcome, fds);
    for (int i = 0; i < N_DESCRIPTORS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (r)
        return r;
    cb_lane_client_set_name(h->lane, name_of(options));
    r = cb_doorbell_send(h->sock, CB_RECORD_READY);
    return r ? cb_fail_at("the daemon hung up during the handshake", CB_LOST, 0, 0) : 0;
}
