/* The next link is made whole outside the lock and put in its place under it, so that to all others
 * the handle is away and then is not. What waits is sent in the same breath, before anything new. */
#include "client/resume.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "client/reconnect.h"

#define MS        1000000ull
#define ANSWER_NS (2000 * MS) /* for a handshake, as when a handle is opened */

/* A loop that sleeps has armed what is gone: it is to run its recipe. */
static void stir_locked(struct cb_handle *h)
{
    const struct itimerspec now = {{0, 0}, {0, 1}};
    if (h->reconnect->timer_fd >= 0)
        (void)timerfd_settime(h->reconnect->timer_fd, 0, &now, NULL);
}

static void install_locked(struct cb_handle *h, struct cb_link *link, int *ringp)
{
    struct cb_link *old = h->link;
    link->serial = old->serial + 1;
    cb_link_set(h, link);
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
    cb_add32(&h->n_moves, 1, CB_RELAXED);
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
        cb_reconnect_unwatch(c, c->sock);
        close(c->sock);
    }
    c->sock = -1;
    if (status == CB_VERSION || status == CB_CHANGED)
        cb_give_up_locked(h, status == CB_CHANGED ? CB_CHANGED : CB_LOST);
    else if (status == CB_QUOTA && ask_for_less(c, detail))
        c->look_ns = now_ns;
    else
        cb_reconnect_later(c, now_ns);
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
        (void)cb_reconnect_watch(c, sock);
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

void cb_resume_locked(struct cb_handle *h, uint64_t wait_ns, int *ringp)
{
    struct cb_reconnect *c = h->reconnect;
    int cancel_state;
    if (!h->is_away || c->is_busy)
        return;
    cb_sweep_locked(h);
    uint64_t now_ns = cb_now_ns();
    if (now_ns >= c->end_ns) {
        if (c->sock >= 0) {
            cb_reconnect_unwatch(c, c->sock);
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
