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
#include "shm/names.h"

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

static uint64_t offered(const struct cb_options *options)
{
    return CB_FEATURES | (options->named ? CB_FEATURE_NAMED : 0);
}

int cb_connect_hello(int sock, const struct cb_options *options)
{
    struct cb_hello hello = {
        .head = {CB_RECORD_MAGIC, CB_RECORD_HELLO, 0},
        .format_min = CB_FORMAT,
        .features = offered(options),
        .format_max = CB_FORMAT,
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .n_slots = options->n_slots,
        .wake = options->kind == CB_KIND_EVENT_LOOP ? CB_WAKE_SOCKET : CB_WAKE_FUTEX,
        .arena_bytes = options->arena_bytes,
        .pool_bytes = options->pool_bytes,
    };
    snprintf(hello.libc, sizeof(hello.libc), "glibc-%s", gnu_get_libc_version());
    snprintf(hello.name, sizeof(hello.name), "%s", name_of(options));
    /* Who hung up already may have said why: that is read next. */
    if (send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return cb_fail_errno("sending HELLO", errno);
    return 0;
}

/* One record with its descriptors, of which fds[] gets up to N_DESCRIPTORS, the rest -1. CB_TIMEOUT:
 * none came for so long. */
static int receive(int sock, int wait_ms, void *record, int fds[N_DESCRIPTORS])
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
        if (!cb_await_answer(sock, wait_ms))
            return CB_TIMEOUT;
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
static int refused(const void *record, const struct cb_options *options, uint32_t detail[2])
{
    struct cb_refused r;
    memcpy(&r, record, sizeof(r));
    memcpy(detail, r.detail, sizeof(r.detail));
    if (r.status >= 0)
        return cb_fail_at("the daemon's refusal", CB_BAD_RECORD, 0, 0);
    if (options->named && r.status == CB_DENIED)
        return cb_fail_at("the daemon gives this user no lanes by name (named_uids)", CB_DENIED, 0,
                          0);
    return cb_fail_at(r.status == CB_SYSTEM ? "the daemon refused, its log says why"
                                            : "the daemon refused",
                      r.status, r.detail[0], r.detail[1]);
}

static int check_welcome(const struct cb_welcome *w, const struct cb_options *options)
{
    if (w->head.magic != CB_RECORD_MAGIC || w->head.type != CB_RECORD_WELCOME || w->head.reserved ||
        !all_zero(w->reserved, sizeof(w->reserved)))
        return cb_fail_at("WELCOME", CB_BAD_RECORD, 0, 0);
    if (w->format != CB_FORMAT)
        return cb_fail(CB_VERSION);
    if (options->named && !(w->features & CB_FEATURE_NAMED))
        return cb_fail_at("the daemon is older than lanes by name", CB_VERSION, 0, 0);
    if (w->features & ~offered(options))
        return cb_fail_at("WELCOME's features", CB_BAD_RECORD, 0, 0);
    if (w->defaults & ~(w->features & CB_FEATURE_DEFAULTS ? CB_DEFAULTS : 0u) ||
        (w->seed && !(w->defaults & CB_DEFAULT_SEED)) ||
        (w->weight_epoch && !(w->features & CB_FEATURE_RESUME)))
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

/* The lane of a link that has its geometry. */
static int map_lane(struct cb_link *link, const int fds[N_DESCRIPTORS])
{
    const struct cb_geometry *g = &link->geometry;
    size_t lane_bytes = (cb_lane_client_bytes(g) + 127u) & ~(size_t)127u;
    struct cb_piece *pieces;
    int r = map(&link->up, fds[0], g->up_bytes, 1);
    if (!r)
        r = map(&link->down, fds[1], g->down_bytes, 0);
    if (r)
        return r;
    link->lane_memory = aligned_alloc(128, lane_bytes);
    link->of_slot = calloc(g->n_slots, sizeof(*link->of_slot));
    pieces = calloc(g->n_slots, sizeof(*pieces));
    if (!link->lane_memory || !pieces || !link->of_slot) {
        free(pieces);
        return cb_fail(CB_NO_MEMORY);
    }
    memset(link->lane_memory, 0, lane_bytes);
    cb_arena_init(&link->arena, pieces, g->n_slots, g->up_arena_bytes, 8);
    r = cb_lane_client_init(&link->lane, link->lane_memory, g, link->up.base, link->down.base);
    const struct cb_down_fixed *fixed = link->down.base;
    if (r || fixed->lane_id != link->lane_id ||
        memcmp(fixed->boot_id, link->boot_id, sizeof(link->boot_id)) != 0)
        return cb_fail_at("the lane's head", CB_BAD_RECORD, 0, 0);
    return 0;
}

/* The handle's vocabulary, if it has none yet, or the very same again. */
static int take_vocab(struct cb_handle *h, int fd, uint64_t bytes)
{
    struct cb_segment s = {0};
    int r = map(&s, fd, bytes, 0);
    if (r)
        return r;
    if (h->vocab_segment.base) {
        bool same =
            bytes == h->vocab_segment.bytes && !memcmp(s.base, h->vocab_segment.base, bytes);
        cb_segment_unmap(&s);
        return same ? 0 : cb_fail(CB_CHANGED);
    }
    h->vocab_segment = s;
    if (cb_vocab_attach(&h->vocab, s.base, s.bytes))
        return cb_fail_at("the daemon's vocabulary", CB_BAD_RECORD, 0, 0);
    h->model_name = calloc(1, h->vocab.name_bytes + 1);
    if (!h->model_name)
        return cb_fail(CB_NO_MEMORY);
    memcpy(h->model_name, h->vocab.name, h->vocab.name_bytes);
    return 0;
}

static int attach(struct cb_handle *h, struct cb_link *link, const struct cb_welcome *w,
                  const int fds[N_DESCRIPTORS])
{
    if (fds[0] < 0 || fds[1] < 0 || fds[3] < 0) /* STATUS is not needed here */
        return cb_fail_at("WELCOME's descriptors", CB_BAD_RECORD, 0, 0);
    link->geometry = w->geometry;
    link->lane_id = w->lane_id;
    link->features = w->features;
    link->defaults = w->defaults;
    link->seed = w->seed;
    link->weight_epoch = w->weight_epoch;
    memcpy(link->boot_id, w->boot_id, sizeof(w->boot_id));
    memcpy(link->fingerprint, w->fingerprint, sizeof(w->fingerprint));
    link->spin_ns = (uint64_t)w->spin_us * 1000u;
    int r = map_lane(link, fds);
    return r ? r : take_vocab(h, fds[3], w->vocab_bytes);
}

/* What goes with the names; a daemon that root made the socket for may be anybody. */
static uid_t owner_of(int sock)
{
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) || peer.uid == 0)
        return (uid_t)-1;
    return peer.uid;
}

/* One part of a lane by name into *fdp. */
static int open_name(int *fdp, const char *base, enum cb_names_part part, bool writable,
                     uid_t owner)
{
    struct cb_why why;
    int r = cb_names_open(base, part, writable, owner, &why);
    *fdp = r < 0 ? -1 : r;
    return r < 0 ? cb_fail_at(why.text, CB_SYSTEM, 0, 0) : 0;
}

/* NAMES, which was sent behind WELCOME: fds[] as if they had come with it, and the bell. */
static int open_names(struct cb_link *link, uint32_t kind, int fds[N_DESCRIPTORS])
{
    struct cb_names_record names;
    int none[N_DESCRIPTORS], bell_fd = -1;
    uid_t owner = owner_of(link->sock);
    int r = receive(link->sock, HANDSHAKE_MS, &names, none);
    if (r == CB_TIMEOUT)
        r = cb_fail_at("the daemon sent WELCOME and no NAMES", CB_BAD_RECORD, 0, 0);
    for (int i = 0; i < N_DESCRIPTORS; i++) {
        if (none[i] >= 0)
            close(none[i]);
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
    if (r)
        return r;
    if (names.head.magic != CB_RECORD_MAGIC || names.head.type != CB_RECORD_NAMES ||
        names.head.reserved || !all_zero(names.reserved, sizeof(names.reserved)) ||
        names.lane[0] != '/' || names.vocab[0] != '/' ||
        !memchr(names.lane, 0, sizeof(names.lane)) || !memchr(names.vocab, 0, sizeof(names.vocab)))
        return cb_fail_at("NAMES", CB_BAD_RECORD, 0, 0);
    r = open_name(&fds[0], names.lane, CB_NAMES_UP, true, owner);
    if (!r)
        r = open_name(&fds[1], names.lane, CB_NAMES_DOWN, false, owner);
    if (!r)
        r = open_name(&fds[3], names.vocab, CB_NAMES_VOCAB, false, owner);
    if (!r && kind != CB_KIND_EVENT_LOOP) {
        r = open_name(&bell_fd, names.lane, CB_NAMES_BELL, true, owner);
        if (!r)
            r = map(&link->bell, bell_fd, CB_PAGE, 1);
        if (bell_fd >= 0)
            close(bell_fd);
    }
    return r;
}

static int answer(struct cb_handle *h, struct cb_link *link, const struct cb_options *options,
                  int wait_ms, uint32_t detail[2])
{
    union {
        struct cb_welcome welcome;
        struct cb_record_head head;
    } record;
    int fds[N_DESCRIPTORS];
    int r = receive(link->sock, wait_ms, &record, fds);
    if (r == CB_TIMEOUT)
        return r;
    if (!r && record.head.magic == CB_RECORD_MAGIC && record.head.type == CB_RECORD_REFUSED)
        r = refused(&record, options, detail);
    else if (!r)
        r = check_welcome(&record.welcome, options);
    if (!r && options->named)
        r = open_names(link, options->kind, fds);
    if (!r)
        r = attach(h, link, &record.welcome, fds);
    for (int i = 0; i < N_DESCRIPTORS; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (r)
        return r;
    cb_lane_client_set_name(link->lane, name_of(options));
    r = cb_doorbell_send(link->sock, CB_RECORD_READY);
    return r ? cb_fail_at("the daemon hung up during the handshake", CB_LOST, 0, 0) : 0;
}

int cb_connect_answer(struct cb_handle *h, int sock, const struct cb_options *options, int wait_ms,
                      struct cb_link **linkp, uint32_t detail[2])
{
    struct cb_link *link = calloc(1, sizeof(*link));
    int r;
    detail[0] = detail[1] = 0;
    if (!link)
        return cb_fail(CB_NO_MEMORY);
    link->sock = sock;
    r = answer(h, link, options, wait_ms, detail);
    if (r) {
        link->sock = -1; /* it is still the caller's */
        cb_link_free(link, false);
        return r;
    }
    *linkp = link;
    return 0;
}

int cb_connect_first(struct cb_handle *h, int sock, const struct cb_options *options)
{
    struct cb_link *link;
    uint32_t detail[2];
    int r = cb_connect_hello(sock, options);
    if (!r)
        r = cb_connect_answer(h, sock, options, HANDSHAKE_MS, &link, detail);
    if (r == CB_TIMEOUT)
        r = cb_fail_silent(sock, HANDSHAKE_MS / 1000);
    if (r) {
        close(sock);
        return r;
    }
    link->serial = 1;
    cb_link_set(h, link);
    h->features = link->features;
    h->defaults = link->defaults;
    if (link->defaults & CB_DEFAULT_SEED)
        h->seed_state = link->seed;
    h->n_vocab = link->geometry.n_vocab;
    h->n_context = link->geometry.n_context;
    h->arena_bytes = link->geometry.up_arena_bytes;
    h->pool_bytes = link->geometry.down_pool_bytes;
    h->n_held = link->geometry.n_slots;
    h->held = calloc(h->n_held, sizeof(*h->held));
    if (!h->held)
        return cb_fail(CB_NO_MEMORY);
    h->spin_ns = link->spin_ns < SPIN_NS_MAX ? link->spin_ns : SPIN_NS_MAX;
    if (sysconf(_SC_NPROCESSORS_ONLN) <= 2) /* spinning would take the daemon's own core */
        h->spin_ns = 0;
    return 0;
}
