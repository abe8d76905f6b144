/* The next link is made whole outside the lock and put in its place under it, so that to all others
 * the handle is away and then is not. What waits is sent in the same breath, before anything new. */
#include "client/reconnect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/record.h"

#define MS             1000000ull
#define DELAY_FIRST_MS 20u
#define DELAY_MOST_MS  2000u
#define ANSWER_NS      (2000 * MS) /* for a handshake, as when a handle is opened */
#define PATIENCE_NS    (100 * MS)
#define RECONNECT_MS   30000u
#define RESUME_MAX     5u
#define BUSY_NS        (50 * MS) /* another thread is at it: look again then */

struct cb_reconnect {
    struct cb_options options; /* what it points to is owned */
    uint32_t *trusted_uids;
    char *instance, *run_dir, *name;
    uint32_t reconnect_ms, resume_max;
    int epoll_fd, timer_fd; /* -1: no event loop */
    bool is_busy;           /* a thread is at it */
    int sock;               /* HELLO was sent there; -1: none was */
    uint32_t delay_ms;
    uint64_t look_ns, answer_ns, end_ns; /* the next look; no answer by then; giving up */
    uint64_t random;
};

/* ---- made and unmade ------------------------------------------------------------------------- */

static bool copy(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

static int watch(struct cb_reconnect *c, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (c->epoll_fd < 0)
        return 0;
    return epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static void unwatch(struct cb_reconnect *c, int fd)
{
    if (c->epoll_fd >= 0)
        (void)epoll_ctl(c->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static int make_fds(struct cb_reconnect *c, int sock)
{
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll_fd < 0)
        return cb_fail_errno("epoll_create1", errno);
    c->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (c->timer_fd < 0)
        return cb_fail_errno("timerfd_create", errno);
    int r = watch(c, c->timer_fd);
    if (!r)
        r = watch(c, sock);
    return r ? cb_fail_errno("epoll_ctl", -r) : 0;
}

int cb_reconnect_new(struct cb_handle *h, const struct cb_options *options)
{
    struct cb_reconnect *c = calloc(1, sizeof(*c));
    const struct cb_link *link = h->link;
    bool ok = c != NULL;
    if (!ok)
        return cb_fail(CB_NO_MEMORY);
    h->reconnect = c; /* cb_close frees it */
    c->sock = c->epoll_fd = c->timer_fd = -1;
    c->random = h->seed_state ^ (uint64_t)getpid();
    c->options = *options;
    ok = copy(&c->instance, options->instance) && copy(&c->run_dir, options->run_dir) &&
         copy(&c->name, options->name);
    if (ok && options->n_trusted_uids) {
        c->trusted_uids = malloc(options->n_trusted_uids * sizeof(*c->trusted_uids));
        ok = c->trusted_uids != NULL;
        if (ok)
            memcpy(c->trusted_uids, options->trusted_uids,
                   options->n_trusted_uids * sizeof(*c->trusted_uids));
    }
    if (!ok)
        return cb_fail(CB_NO_MEMORY);
    c->options.instance = c->instance;
    c->options.run_dir = c->run_dir;
    c->options.name = c->name;
    c->options.trusted_uids = c->trusted_uids;
    /* The next one is asked for as much as this one gave. */
    c->options.n_slots = h->n_held;
    c->options.arena_bytes = h->arena_bytes;
    c->options.pool_bytes = h->pool_bytes;
    c->reconnect_ms = options->reconnect_ms ? options->reconnect_ms : RECONNECT_MS;
    c->resume_max = options->resume_max ? options->resume_max : RESUME_MAX;
    if (!(link->features & CB_FEATURE_RESUME))
        return cb_fail(CB_VERSION);
    return h->kind == CB_KIND_EVENT_LOOP ? make_fds(c, link->sock) : 0;
}

struct cb_reconnect *cb_reconnect_free(struct cb_reconnect *c)
{
    if (!c)
        return NULL;
    if (c->sock >= 0)
        close(c->sock);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    if (c->timer_fd >= 0)
        close(c->timer_fd);
    free(c->trusted_uids);
    free(c->instance);
    free(c->run_dir);
    free(c->name);
    free(c);
    return NULL;
}

/* ---- when ------------------------------------------------------------------------------------ */

/* Between a half and the whole of it. */
static uint64_t jittered_ns(struct cb_reconnect *c, uint32_t ms)
{
    uint64_t z = c->random += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return ms * MS / 2 + (z ^ z >> 31) % (ms * MS / 2 + 1);
}

static void look_later(struct cb_reconnect *c, uint64_t now_ns)
{
    c->look_ns = now_ns + jittered_ns(c, c->delay_ms);
    c->delay_ms = c->delay_ms < DELAY_MOST_MS / 2 ? 2 * c->delay_ms : DELAY_MOST_MS;
}

void cb_reconnect_begin_locked(struct cb_handle *h)
{
    struct cb_reconnect *c = h->reconnect;
    const struct cb_link *link = h->link;
    uint64_t now_ns = cb_now_ns();
    h->is_away = true;
    c->delay_ms = DELAY_FIRST_MS;
    c->end_ns = now_ns + c->reconnect_ms * MS;
    look_later(c, now_ns);
    unwatch(c, link->sock);
    cb_reconnect_arm_locked(h);
}

uint64_t cb_reconnect_idle_ns(const struct cb_handle *h)
{
    const struct cb_reconnect *c = h->reconnect;
    uint64_t now_ns = cb_now_ns();
    if (c->is_busy)
        return BUSY_NS;
    if (c->sock >= 0 || now_ns >= c->look_ns || now_ns >= c->end_ns)
        return 0;
    uint64_t until_ns = c->look_ns < c->end_ns ? c->look_ns : c->end_ns;
    return until_ns - now_ns;
}

uint64_t cb_reconnect_patience_ns(const struct cb_handle *h)
{
    return h->kind == CB_KIND_EVENT_LOOP ? 0 : PATIENCE_NS;
}

uint32_t cb_reconnect_resume_max(const struct cb_handle *h)
{
    return h->reconnect->resume_max;
}

int cb_reconnect_fd(const struct cb_handle *h)
{
    return h->reconnect->epoll_fd;
}

void cb_reconnect_arm_locked(struct cb_handle *h)
{
    struct cb_reconnect *c = h->reconnect;
    struct itimerspec t = {{0, 0}, {0, 0}};
    if (c->epoll_fd < 0)
        return;
    if (h->is_away) {
        uint64_t due_ns = c->sock >= 0 ? c->answer_ns : c->look_ns;
        due_ns = due_ns < c->end_ns ? due_ns : c->end_ns;
        t.it_value.tv_sec = (time_t)(due_ns / (1000 * MS));
        t.it_value.tv_nsec = (long)(due_ns % (1000 * MS));
    }
    (void)timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

/* A loop that sleeps has armed what is gone: it is to run its recipe. */
static void stir_locked(struct cb_handle *h)
{
    const struct itimerspec now = {{0, 0}, {0, 1}};
    if (h->reconnect->timer_fd >= 0)
        (void)timerfd_settime(h->reconnect->timer_fd, 0, &now, NULL);
}

/* ---- how ------------------------------------------------------------------------------------- */

static void install_locked(struct cb_handle *h, struct cb_link *link, int *ringp)
{
    struct cb_link *old = h->link;
    link->serial = old->serial + 1;
    h->link = link;
    old->older = h->older;
    h->older = old;
    h->is_away = false;
    h->is_paused = false;
    h->leader_parked = false;
    h->resend_ns = 0;
    h->n_reconnects++;
    h->life_seen_ns = cb_now_coarse_ns();
    if (h->n_pauses)
        *ringp |= cb_lane_client_pause(link->lane, true);
    cb_resend_locked(h, ringp);
    cb_link_reap_locked(h);
    stir_locked(h);
    atomic_fetch_add_explicit(&h->n_moves, 1, memory_order_release);
    cb_wake_all_locked(h);
}

/* What was asked for is more than the next one gives: less is asked for. */
static bool ask_for_less(struct cb_reconnect *c, const uint32_t detail[2])
{
    if (detail[0] == CB_LIMIT_LANE_SLOTS && detail[1] && detail[1] < c->options.n_slots)
        c->options.n_slots = detail[1];
    else if (detail[0] == CB_LIMIT_LANE_ARENA_KIB &&
             (uint64_t)detail[1] << 10 < c->options.arena_bytes)
        c->options.arena_bytes = (uint64_t)detail[1] << 10;
    else if (detail[0] == CB_LIMIT_LANE_POOL && 4ull * detail[1] < c->options.pool_bytes)
        c->options.pool_bytes = 4ull * detail[1];
    else
        return false;
    return true;
}

/* Whether the new one can take the old one's place. */
static bool is_as_good(const struct cb_handle *h, const struct cb_link *link)
{
    return (link->features & h->features) == h->features && link->geometry.n_vocab == h->n_vocab;
}

/* A handshake has failed with this status. */
static void failed_locked(struct cb_handle *h, int status, const uint32_t detail[2])
{
    struct cb_reconnect *c = h->reconnect;
    uint64_t now_ns = cb_now_ns();
    if (c->sock >= 0) {
        unwatch(c, c->sock);
        close(c->sock);
    }
    c->sock = -1;
    if (status == CB_VERSION || status == CB_CHANGED)
        cb_give_up_locked(h, status == CB_CHANGED ? CB_CHANGED : CB_LOST);
    else if (status == CB_QUOTA && ask_for_less(c, detail))
        c->look_ns = now_ns;
    else
        look_later(c, now_ns);
}

/* Looks and says HELLO: the socket, or a status. */
static int greet(const struct cb_options *options)
{
    int sock = cb_find_socket_now(options);
    if (sock < 0)
        return sock;
    int r = cb_connect_hello(sock, options);
    if (r)
        close(sock);
    return r ? r : sock;
}

static void try_locked(struct cb_handle *h, uint64_t wait_ns, int *ringp)
{
    struct cb_reconnect *c = h->reconnect;
    uint32_t detail[2] = {0, 0};
    struct cb_link *link = NULL;
    int r = 0, sock = c->sock;
    bool greets = sock < 0;
    pthread_mutex_unlock(&h->lock);
    if (greets)
        sock = greet(&c->options);
    if (sock >= 0)
        r = cb_connect_answer(h, sock, &c->options, (int)((wait_ns + MS - 1) / MS), &link, detail);
    pthread_mutex_lock(&h->lock);
    if (sock < 0) {
        failed_locked(h, sock, detail);
        return;
    }
    if (greets) {
        c->answer_ns = cb_now_ns() + ANSWER_NS;
        (void)watch(c, sock);
    }
    c->sock = sock;
    if (r == CB_TIMEOUT) {
        if (cb_now_ns() >= c->answer_ns)
            failed_locked(h, r, detail);
    } else if (r) {
        failed_locked(h, r, detail);
    } else if (!is_as_good(h, link)) {
        link->sock = -1; /* closed with the handshake */
        cb_link_free(link, false);
        failed_locked(h, CB_VERSION, detail);
    } else {
        c->sock = -1;
        install_locked(h, link, ringp);
    }
}

void cb_reconnect_locked(struct cb_handle *h, uint64_t wait_ns, int *ringp)
{
    struct cb_reconnect *c = h->reconnect;
    int cancel_state;
    if (!h->is_away || c->is_busy)
        return;
    cb_sweep_locked(h);
    uint64_t now_ns = cb_now_ns();
    if (now_ns >= c->end_ns) {
        if (c->sock >= 0) {
            unwatch(c, c->sock);
            close(c->sock);
        }
        c->sock = -1;
        cb_give_up_locked(h, CB_LOST);
        stir_locked(h);
        return;
    }
    if (c->sock < 0 && now_ns < c->look_ns)
        return;
    c->is_busy = true;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    try_locked(h, wait_ns, ringp);
    pthread_setcancelstate(cancel_state, NULL);
    c->is_busy = false;
    cb_wake_all_locked(h); /* who waited for us to be done */
}
