/* Where to look is what the handle was opened with, copied; when, is a delay that doubles. An event loop
 * watches one descriptor in place of the sockets that come and go: an epoll set with a timer in it. */
#include "client/reconnect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/record.h"

#define MS             1000000ull
#define DELAY_FIRST_MS 20u
#define DELAY_MOST_MS  2000u
#define PATIENCE_NS    (100 * MS)
#define RECONNECT_MS   30000u
#define RESUME_MAX     5u
#define BUSY_NS        (50 * MS) /* another thread is at it: look again then */

/* ---- made and unmade ------------------------------------------------------------------------- */

static bool copy(char **to, const char *from)
{
    *to = from ? strdup(from) : NULL;
    return !from || *to;
}

int cb_reconnect_watch(struct cb_reconnect *c, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (c->epoll_fd < 0)
        return 0;
    return epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

void cb_reconnect_unwatch(struct cb_reconnect *c, int fd)
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
    int r = cb_reconnect_watch(c, c->timer_fd);
    if (!r)
        r = cb_reconnect_watch(c, sock);
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

void cb_reconnect_later(struct cb_reconnect *c, uint64_t now_ns)
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
    cb_reconnect_later(c, now_ns);
    cb_reconnect_unwatch(c, link->sock);
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
