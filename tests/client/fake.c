/* tests/client/fake.c - see fake.h. One thread; the test talks to it by atomics and a socket
 * pair. */
#include "tests/client/fake.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/model/vocabulary.h"
#include "shm/doorbell.h"
#include "shm/lane.h"
#include "shm/message.h"
#include "shm/names.h"
#include "shm/segment.h"

enum { SLOTS_MAX = 256 };

struct running {
    bool active;
    uint32_t i, n_out, first_id, k;
    uint32_t stop_ids[CB_STOP_IDS_MAX], n_stop_ids;
    struct cb_stops stops;
    struct cb_stop_state stop_state;
};

struct fake {
    struct fake_config config;
    char dir[32], sock_path[108], instance_dir[64];
    int listener, nudge[2], conn;
    pthread_t thread;
    struct vocab_image *image;
    _Atomic bool stop, held, deaf, mute, kill, dead;
    _Atomic uint32_t steps, notice, close_lane;
    _Atomic uint64_t n_bells;
    _Atomic uint32_t n_named;
    pthread_mutex_t wishes_lock;
    struct fake_wishes wishes;

    /* the thread's */
    struct cb_segment up, down, bell; /* bell: of a lane by name */
    struct cb_names names, vocab_names;
    struct cb_geometry g;
    uint32_t wake;
    uint64_t features;
    void *memory;
    struct cb_lane *lane;
    uint32_t noticed;
    bool paused; /* by the client */
    struct running running[SLOTS_MAX];
    uint32_t n_muted[SLOTS_MAX];
};

/* ---- the handshake --------------------------------------------------------------------------- */

static void send_with(int conn, const void *record, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 4)];
    } control = {0};
    struct iovec piece = {(void *)(uintptr_t)record, CB_RECORD_BYTES};
    struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1};
    if (n_fds) {
        struct cmsghdr *c;
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    sendmsg(conn, &m, MSG_NOSIGNAL);
}

static bool read_record(struct fake *f, void *record)
{
    for (;;) {
        struct pollfd p[2] = {{f->conn, POLLIN, 0}, {f->nudge[0], POLLIN, 0}};
        ssize_t n;
        if (atomic_load(&f->stop))
            return false;
        poll(p, 2, 1000);
        n = recv(f->conn, record, CB_RECORD_BYTES, MSG_DONTWAIT);
        if (n == CB_RECORD_BYTES)
            return true;
        if (n >= 0 || errno != EAGAIN)
            return false;
    }
}

static void refuse(struct fake *f)
{
    struct cb_refused r = {.head = {CB_RECORD_MAGIC, CB_RECORD_REFUSED, 0},
                           .status = f->config.refuse,
                           .detail = {7, 8}};
    send_with(f->conn, &r, NULL, 0);
}

static int vocab_fd(struct fake *f)
{
    struct cb_segment s;
    struct cb_why why;
    int fd;
    cr_assert(!cb_segment_make_sealable(&s, &fd, "vocab", vocab_image_bytes(f->image), &why));
    memcpy(s.base, vocab_image_data(f->image), vocab_image_bytes(f->image));
    cr_assert(!cb_segment_seal(&s, &fd, &why));
    cb_segment_unmap(&s);
    return fd;
}

static void make_named(struct fake *f)
{
    const struct cb_names_lane lane = {"fake", geteuid(), f->g.up_bytes, f->g.down_bytes,
                                       f->wake == CB_WAKE_FUTEX};
    struct cb_why why;
    cr_assert(!cb_names_make_lane(&f->names, &lane, &f->up, &f->down, &f->bell, &why), "%s",
              why.text);
    cr_assert(!cb_names_make_vocab(&f->vocab_names, "fake", NULL, 0, vocab_image_data(f->image),
                                   vocab_image_bytes(f->image), &why),
              "%s", why.text);
    atomic_fetch_add(&f->n_named, 1);
}

static void send_names(struct fake *f, const struct cb_welcome *w)
{
    struct cb_names_record names = {.head = {CB_RECORD_MAGIC, CB_RECORD_NAMES, 0}};
    snprintf(names.lane, sizeof(names.lane), "%s", f->names.base);
    snprintf(names.vocab, sizeof(names.vocab), "%s", f->vocab_names.base);
    send_with(f->conn, w, NULL, 0);
    if (f->config.spoil_names)
        f->config.spoil_names(&names);
    if (!f->config.keeps_names)
        send_with(f->conn, &names, NULL, 0);
}

static void forget_names(struct fake *f)
{
    cb_names_unlink(&f->names);
    cb_names_unlink(&f->vocab_names);
}

static bool shake_hands(struct fake *f)
{
    struct cb_hello hello;
    struct cb_plain_record ready;
    struct cb_welcome w = {.head = {CB_RECORD_MAGIC, CB_RECORD_WELCOME, 0},
                           .format = CB_FORMAT,
                           .lane_id = 5,
                           .boot_id = {1, 2},
                           .fingerprint = {3, 4},
                           .spin_us = 20};
    struct cb_lane_config config = {.lane_id = 5, .boot_id = {1, 2}, .fingerprint = {3, 4}};
    struct cb_why why;
    int fds[4];
    if (f->config.refuse_unread) {
        struct pollfd p = {f->conn, POLLIN, 0};
        poll(&p, 1, 10000);
        refuse(f);
        return false;
    }
    if (!read_record(f, &hello) || f->config.hang_up_early)
        return false;
    if (f->config.never_answer)
        return read_record(f, &ready);
    usleep(f->config.late_ms * 1000);
    if (f->config.refuse) {
        refuse(f);
        return false;
    }
    f->wake = hello.wake;
    f->features = w.features =
        f->config.is_old ? 0 : hello.features & (CB_FEATURES | CB_FEATURE_NAMED);
    bool is_named = f->features & CB_FEATURE_NAMED;
    cr_assert(!cb_geometry_make(&f->g,
                                f->config.n_slots ? f->config.n_slots
                                : hello.n_slots   ? hello.n_slots
                                                  : 64,
                                f->config.arena_bytes ? f->config.arena_bytes : 1u << 20,
                                f->config.pool_bytes ? f->config.pool_bytes : 1u << 20, FAKE_VOCAB,
                                FAKE_CONTEXT));
    cr_assert(f->g.n_slots <= SLOTS_MAX);
    if (is_named) {
        make_named(f);
        fds[0] = fds[1] = -1;
    } else {
        cr_assert(!cb_segment_make_up(&f->up, &fds[0], f->g.up_bytes, &why));
        cr_assert(!cb_segment_make_down(&f->down, &fds[1], f->g.down_bytes, &why));
    }
    fds[2] = memfd_create("status", MFD_CLOEXEC);
    fds[3] = vocab_fd(f);
    f->memory = aligned_alloc(128, (cb_lane_bytes(&f->g) + 127) & ~127ul);
    memset(f->memory, 0, cb_lane_bytes(&f->g));
    f->lane = cb_lane_init(f->memory, &f->g, f->up.base, f->down.base, &config);
    w.geometry = f->g;
    w.vocab_bytes = vocab_image_bytes(f->image);
    w.status_bytes = 4096;
    if (f->config.spoil)
        f->config.spoil(&w);
    if (f->config.spoil_down)
        ((struct cb_down_fixed *)f->down.base)->geometry = w.geometry;
    if (is_named)
        send_names(f, &w);
    else
        send_with(f->conn, &w, fds, 4);
    for (int i = is_named ? 2 : 0; i < 4; i++)
        close(fds[i]);
    bool is_ready = read_record(f, &ready) && ready.head.type == CB_RECORD_READY;
    forget_names(f);
    return is_ready;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* What the fake says of token i: -i, and of the j-th best, id i + j, -(i + j / 4). */
static struct cb_lane_logprobs logprobs_of(const struct running *q, uint32_t i, struct cb_top *top)
{
    for (uint32_t j = 0; j < q->k; j++)
        top[j] = (struct cb_top){i + j, -((float)i + (float)j / 4)};
    return (struct cb_lane_logprobs){-(float)i, top, q->k};
}

/* Keeps what the latest request asked for, for the test to look at. */
static void note_wishes(struct fake *f, const struct cb_request_entry *e,
                        const struct cb_message_parsed *parsed)
{
    struct fake_wishes *w = &f->wishes;
    pthread_mutex_lock(&f->wishes_lock);
    memset(w, 0, sizeof(*w));
    w->flags = e->flags;
    w->planes = e->planes;
    w->sampling = parsed->sampling;
    if (!e->opt_len)
        cb_sampling_init(&w->sampling);
    w->n_biases = parsed->n_biases;
    w->n_allowed = parsed->n_allowed_ids;
    w->n_banned = parsed->n_banned_ids;
    for (uint32_t i = 0; i < w->n_biases && i < FAKE_LIST_MAX; i++)
        w->biases[i] = parsed->biases[i];
    for (uint32_t i = 0; i < w->n_allowed && i < FAKE_LIST_MAX; i++)
        w->allowed[i] = parsed->allowed_ids[i];
    for (uint32_t i = 0; i < w->n_banned && i < FAKE_LIST_MAX; i++)
        w->banned[i] = parsed->banned_ids[i];
    pthread_mutex_unlock(&f->wishes_lock);
}

void fake_wishes(struct fake *f, struct fake_wishes *w)
{
    pthread_mutex_lock(&f->wishes_lock);
    *w = f->wishes;
    pthread_mutex_unlock(&f->wishes_lock);
}

static void intake(struct fake *f)
{
    struct cb_message_limits limits = {.arena_bytes = f->g.up_arena_bytes,
                                       .n_slots = f->g.n_slots,
                                       .n_vocab = FAKE_VOCAB,
                                       .n_context = FAKE_CONTEXT,
                                       .features = f->features};
    struct cb_request_entry e;
    while (cb_lane_peek(f->lane, &e) == CB_LANE_ENTRY) {
        alignas(8) unsigned char block[CB_OPTIONS_MAX];
        struct cb_message_parsed parsed = {0};
        uint32_t detail[2] = {0};
        struct running *q;
        int status = cb_message_check(&e, &limits, detail), r = 0;
        if (!status && e.user == 666) { /* what only a daemon finds */
            status = CB_NO_CAPACITY;
            detail[0] = 11;
            detail[1] = 9;
        }
        if (!status)
            r = cb_lane_reserve(f->lane, &e, e.max_new_tokens, detail);
        if (r == CB_LANE_CANCELLED) {
            cb_lane_cancel(f->lane, &e);
            continue;
        }
        if (r == CB_LANE_WAITS)
            return;
        if (r < 0)
            status = r;
        if (!status && e.opt_len) {
            cb_lane_copy_arena(f->lane, e.opt_off, e.opt_len, block);
            status = cb_message_parse_options(block, e.opt_len, FAKE_VOCAB, &parsed, detail);
        }
        if (status) {
            cb_lane_reject(f->lane, &e, status, detail[0], detail[1]);
            continue;
        }
        q = &f->running[e.slot];
        memset(q, 0, sizeof(*q));
        cb_lane_copy_arena(f->lane, e.prompt_off, 4, &q->first_id);
        q->n_out = e.max_new_tokens;
        q->n_stop_ids = parsed.n_stop_ids;
        if (parsed.n_stop_ids)
            memcpy(q->stop_ids, parsed.stop_ids, parsed.n_stop_ids * sizeof(uint32_t));
        if (e.opt_len)
            q->stops = parsed.stops;
        q->k = cb_planes_k(e.planes);
        note_wishes(f, &e, &parsed);
        q->active = true;
        f->n_muted[e.slot] = 0;
        for (uint32_t i = 1; i < e.n_children; i++) {
            q[i] = *q;
            f->n_muted[e.slot + i] = 0;
        }
        cb_lane_accept(f->lane, &e, e.seed, (struct cb_lane_forecast){0});
        for (uint32_t i = 1; i < e.n_prompt; i++) {
            struct cb_top top[CB_TOPK_MAX];
            const struct cb_lane_logprobs l = logprobs_of(q, 100 + i, top);
            for (uint32_t slot = e.slot; slot < e.slot + e.n_children; slot++)
                cb_lane_prompt_logprobs(f->lane, slot, i, &l);
        }
    }
}

static uint32_t token_of(const struct fake *f, const struct running *q, uint32_t i)
{
    if (f->config.script)
        return (unsigned char)f->config.script[i];
    return (q->first_id + i) % FAKE_VOCAB;
}

static void end(struct fake *f, uint32_t slot, struct cb_lane_end how)
{
    how.queued_ns = 1;
    how.first_token_ns = f->running[slot].i ? 2 : 0;
    how.total_ns = 3;
    cb_lane_end(f->lane, slot, &how);
    f->running[slot].active = false;
}

/* One token, or the end, of each. */
static void step(struct fake *f)
{
    for (uint32_t slot = 0; slot < f->g.n_slots; slot++) {
        struct running *q = &f->running[slot];
        struct cb_top top[CB_TOPK_MAX];
        struct cb_stop_match match;
        const uint8_t *text;
        uint32_t token, n;
        if (!q->active)
            continue;
        if (f->config.script && !f->config.script[q->i]) {
            end(f, slot, (struct cb_lane_end){CB_SLOT_FINISHED, .finish = CB_FINISH_EOS});
            continue;
        }
        if (q->i == q->n_out) {
            end(f, slot,
                (struct cb_lane_end){CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH,
                                     .weight_epoch = 7});
            continue;
        }
        token = token_of(f, q, q->i);
        const struct cb_lane_logprobs l = logprobs_of(q, q->i, top);
        cb_lane_logprobs(f->lane, slot, &l);
        cb_lane_epoch(f->lane, slot, q->i / 2 | (q->i % 2 ? CB_EPOCH_ANEW : 0));
        cb_lane_token(f->lane, slot, token, 1000 + q->i);
        q->i++;
        for (uint32_t k = 0; k < q->n_stop_ids; k++)
            if (q->stop_ids[k] == token) {
                end(f, slot,
                    (struct cb_lane_end){CB_SLOT_FINISHED,
                                         .finish = CB_FINISH_STOP | CB_FINISH_STOP_ID,
                                         .stop_idx = k});
                break;
            }
        text = cb_vocab_text(vocab_image_view(f->image), token, &n);
        if (q->active && q->stops.n_stops &&
            cb_stop_feed(&q->stops, &q->stop_state, text, n, &match) == CB_STOP_FOUND)
            end(f, slot,
                (struct cb_lane_end){CB_SLOT_FINISHED, .finish = CB_FINISH_STOP,
                                     .stop_idx = match.stop_idx,
                                     .text_bytes = (uint32_t)match.text_bytes});
    }
}

/* Writes DOWN behind the lane's back; cb_lane_token says the same again later. */
static void step_muted(struct fake *f)
{
    for (uint32_t slot = 0; slot < f->g.n_slots; slot++) {
        struct running *q = &f->running[slot];
        unsigned char *down = f->down.base;
        struct cb_slot *s = (void *)(down + f->g.down_slots_off + (size_t)slot * f->g.slot_stride);
        uint32_t i = q->i + f->n_muted[slot];
        if (!q->active || i > q->n_out)
            continue;
        if (i == q->n_out) {
            uint32_t gen = cb_load32(&s->ctl, CB_RELAXED) >> 8;
            cb_store32(&s->finish, CB_FINISH_LENGTH, CB_RELAXED);
            cb_store32(&s->ctl, gen << 8 | CB_SLOT_FINISHED, CB_RELEASE);
            continue;
        }
        cb_store32((cb_atomic32 *)(void *)(down + cb_load64(&s->out_off, CB_RELAXED)) + i,
                   token_of(f, q, i), CB_RELAXED);
        cb_store32(&s->emitted, i + 1, CB_RELEASE);
        f->n_muted[slot]++;
    }
}

static void cancels(struct fake *f)
{
    uint32_t slots[SLOTS_MAX];
    uint32_t n = cb_lane_look_cancels(f->lane, slots);
    for (uint32_t i = 0; i < n; i++)
        if (f->running[slots[i]].active)
            end(f, slots[i],
                (struct cb_lane_end){CB_SLOT_CANCELLED, .finish = CB_FINISH_CANCELLED});
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool flush(struct fake *f)
{
    int r = cb_lane_flush(f->lane);
    cr_assert(r >= 0, "the client broke the lane");
    if (!(r & CB_LANE_RING))
        return true;
    if (f->bell.base)
        cb_doorbell_wake(cb_semaphore_post(f->bell.base));
    else if (f->wake == CB_WAKE_FUTEX)
        cb_doorbell_wake(cb_lane_bell(f->lane));
    else if (cb_doorbell_send(f->conn, CB_RECORD_BELL))
        return false;
    cb_lane_answered(f->lane);
    return true;
}

static bool anything_runs(const struct fake *f)
{
    if (f->paused || (atomic_load(&f->held) && !atomic_load(&f->steps)))
        return false;
    for (uint32_t i = 0; i < f->g.n_slots; i++)
        if (f->running[i].active)
            return true;
    return false;
}

/* Reads bells; false if the client is gone. */
static bool read_socket(struct fake *f)
{
    struct cb_plain_record record;
    for (;;) {
        ssize_t n = recv(f->conn, &record, sizeof(record), MSG_DONTWAIT);
        if (n == CB_RECORD_BYTES && record.head.type == CB_RECORD_BELL) {
            atomic_fetch_add(&f->n_bells, 1);
            continue;
        }
        return n < 0 && errno == EAGAIN;
    }
}

static void doze(struct fake *f)
{
    struct pollfd p[2] = {{f->conn, POLLIN, 0}, {f->nudge[0], POLLIN, 0}};
    char byte[64];
    cb_lane_doze(f->lane);
    cb_lane_doze_fence();
    if (cb_lane_look_again(f->lane, atomic_load(&f->held) || f->paused) == CB_LANE_NOTHING ||
        atomic_load(&f->deaf))
        poll(p, 2, 10000);
    cb_lane_undoze(f->lane);
    if (p[1].revents && read(f->nudge[0], byte, sizeof(byte)) < 0)
        return;
}

static void serve(struct fake *f)
{
    while (!atomic_load(&f->stop) && !atomic_load(&f->kill) && read_socket(f)) {
        uint32_t bits = atomic_load(&f->notice), why = atomic_load(&f->close_lane);
        if (!atomic_load(&f->deaf)) {
            intake(f);
            f->paused = cb_lane_look_pause(f->lane);
            cancels(f);
        }
        if (bits != f->noticed)
            cb_lane_notice(f->lane, f->noticed = bits);
        if (why) {
            cb_lane_close(f->lane, (enum cb_closed)why);
            flush(f);
            return;
        }
        if (atomic_load(&f->mute)) {
            step_muted(f);
            if (f->config.step_us == 0)
                usleep(1000);
            continue;
        }
        if (anything_runs(f) && !atomic_load(&f->deaf)) {
            step(f);
            if (atomic_load(&f->held) && atomic_load(&f->steps))
                atomic_fetch_sub(&f->steps, 1);
        }
        if (!flush(f))
            return;
        if (f->config.step_us)
            usleep(f->config.step_us);
        if (!anything_runs(f) || atomic_load(&f->deaf))
            doze(f);
    }
}

static void *run(void *arg)
{
    struct fake *f = arg;
    sigset_t all; /* a test's signals are for its threads; this one plays another process */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&f->stop)) {
        struct pollfd p[2] = {{f->listener, POLLIN, 0}, {f->nudge[0], POLLIN, 0}};
        poll(p, 2, 1000);
        f->conn = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (f->conn < 0)
            continue;
        memset(f->running, 0, sizeof(f->running));
        f->noticed = 0;
        f->paused = false;
        if (shake_hands(f))
            serve(f);
        if (atomic_load(&f->kill)) {
            close(f->listener);
            unlink(f->sock_path);
        }
        close(f->conn);
        cb_segment_unmap(&f->up);
        cb_segment_unmap(&f->down);
        cb_segment_unmap(&f->bell);
        free(f->memory);
        f->memory = NULL;
        atomic_store(&f->dead, atomic_load(&f->kill));
        if (atomic_load(&f->kill))
            break;
    }
    return NULL;
}

/* ---- the test's side ------------------------------------------------------------------------- */

static void nudge(struct fake *f)
{
    cr_assert(write(f->nudge[1], "x", 1) == 1);
}

struct fake *fake_start(const struct fake_config *config)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct fake *f = calloc(1, sizeof(*f));
    f->config = *config;
    pthread_mutex_init(&f->wishes_lock, NULL);
    snprintf(f->dir, sizeof(f->dir), "/tmp/cbfakeXXXXXX");
    cr_assert(mkdtemp(f->dir));
    snprintf(f->instance_dir, sizeof(f->instance_dir), "%s/default", f->dir);
    cr_assert(!mkdir(f->instance_dir, 0700));
    snprintf(f->sock_path, sizeof(f->sock_path), "%s/sock", f->instance_dir);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->sock_path);
    cr_assert(!vocab_image_null(&f->image, FAKE_VOCAB));
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    cr_assert(!bind(f->listener, (struct sockaddr *)&a, sizeof(a)) && !listen(f->listener, 8));
    cr_assert(!pipe(f->nudge));
    cr_assert(!pthread_create(&f->thread, NULL, run, f));
    return f;
}

void fake_stop(struct fake *f)
{
    atomic_store(&f->stop, true);
    nudge(f);
    pthread_join(f->thread, NULL);
    if (!atomic_load(&f->dead))
        close(f->listener);
    close(f->nudge[0]);
    close(f->nudge[1]);
    unlink(f->sock_path);
    rmdir(f->instance_dir);
    rmdir(f->dir);
    vocab_image_free(f->image);
    free(f);
}

const char *fake_dir(const struct fake *f)
{
    return f->dir;
}

void fake_hold(struct fake *f, bool held)
{
    atomic_store(&f->held, held);
    nudge(f);
}

void fake_deaf(struct fake *f, bool deaf)
{
    atomic_store(&f->deaf, deaf);
    nudge(f);
}

void fake_step(struct fake *f, uint32_t n)
{
    atomic_fetch_add(&f->steps, n);
    nudge(f);
}

void fake_kill(struct fake *f)
{
    atomic_store(&f->kill, true);
    nudge(f);
    while (!atomic_load(&f->dead))
        usleep(1000);
}

void fake_close_lane(struct fake *f, uint32_t closed)
{
    atomic_store(&f->close_lane, closed);
    nudge(f);
}

void fake_notice(struct fake *f, uint32_t bits)
{
    atomic_store(&f->notice, bits);
    nudge(f);
}

void fake_mute(struct fake *f, bool mute)
{
    atomic_store(&f->mute, mute);
    nudge(f);
}

uint32_t fake_n_named(const struct fake *f)
{
    return atomic_load(&f->n_named);
}

uint64_t fake_n_bells(const struct fake *f)
{
    return atomic_load(&f->n_bells);
}
