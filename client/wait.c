/* client/wait.c - sleeping until there is an event: for one thread, for many, for event loops.
 *
 * One of the waiting threads leads: it alone sleeps on the lane, and while it is parked it alone
 * takes entries from the ring. The others sleep on words on their own stacks, which whoever makes
 * their request ready sets. The leader marks itself parked under the lock, after a last look at its
 * own requests, and only then arms: were another thread to take the leader's entry between that
 * look and the sleep, the ring would be empty, no bell due, and the result beside a sleeping
 * thread.
 *
 * Whoever returns from a wait while nobody leads wakes one of those who still wait, who then leads;
 * one that has just timed out passes it on by the same rule.
 *
 * In an event loop the leader is the thread that arms, from its first cb_arm on, asleep or not: it
 * comes back to the ring by the recipe. A futex tells of no death, hence slices with a look at the
 * socket; nothing here trusts a bell alone, so a wake that got lost costs two seconds, not a hang. */
#include "client/internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/reconnect.h"
#include "client/resume.h"
#include "shm/doorbell.h"

#define SLICE_NS ((uint64_t)CB_WAIT_SLICE_MS * 1000000u)
#define NET_NS   1000000000ull /* a wait this long looks at the slot table */
#define FOREVER  UINT64_MAX

/* ---- leading --------------------------------------------------------------------------------- */

/* Reads all records there are; what they say stands in shared memory. False: the daemon has gone.
 * Raw calls: they are no points of thread cancellation. */
static bool empty_socket(const struct cb_link *link)
{
    unsigned char record[CB_RECORD_BYTES];
    for (;;) {
        long n =
            syscall(SYS_recvfrom, link->sock, record, sizeof(record), MSG_DONTWAIT, NULL, NULL);
        if (n > 0 || (n < 0 && errno == EINTR))
            continue;
        return n < 0 && errno == EAGAIN;
    }
}

static void sleep_on_socket(const struct cb_link *link, uint64_t ns)
{
    struct pollfd p = {link->sock, POLLIN, 0};
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    syscall(SYS_ppoll, &p, 1, &t, NULL, 0);
}

/* Sleeps on the lane for at most ns, in one slice. */
static void lead_locked(struct cb_handle *h, uint64_t ns)
{
    pthread_t self = pthread_self();
    struct cb_link *link = cb_link_hold_locked(h);
    bool socket_kind = h->kind == CB_KIND_EVENT_LOOP;
    bool gone = socket_kind && !empty_socket(link);
    void *semaphore = link->bell.base; /* of a lane by name, instead of the bell word */
    uint32_t bell;
    int r;
    if (ns > SLICE_NS)
        ns = SLICE_NS;
    h->leader_parked = true;
    h->leader = self;
    /* A loop's own arming, if any, ends: a sleep has an epoch of its own. */
    cb_lane_client_unpark(link->lane);
    if (semaphore) /* before the new epoch: later it could be the bell of this one */
        cb_semaphore_empty(semaphore);
    r = cb_lane_client_park(link->lane, &bell);
    if (r == CB_LANE_NOTHING && !gone) {
        pthread_mutex_unlock(&h->lock);
        if (socket_kind)
            sleep_on_socket(link, ns);
        else if (semaphore)
            gone = cb_semaphore_wait(semaphore, ns) == -ETIMEDOUT;
        else if (cb_doorbell_wait(cb_lane_client_bell_word(link->lane), bell, ns) == -ETIMEDOUT)
            gone = true; /* perhaps: ask the socket */
        pthread_mutex_lock(&h->lock);
    }
    if (link == h->link) { /* else another thread has seen it go, and found the next one */
        /* Else a loop has armed meanwhile. */
        if (h->leader_parked && pthread_equal(h->leader, self)) {
            cb_lane_client_unpark(link->lane);
            h->leader_parked = false;
        }
        cb_life_locked(h, gone);
    }
    cb_link_drop_locked(h, link);
}

/* Looks without the lock until something moves or the time is over. */
static void spin_locked(struct cb_handle *h, uint64_t ns)
{
    struct cb_link *link = cb_link_hold_locked(h);
    const struct cb_down_hot *hot =
        (const void *)((const unsigned char *)link->down.base + CB_PAGE);
    uint32_t moves = cb_load32(&h->n_moves, CB_RELAXED);
    uint64_t sent = cb_load64(&hot->res_sent, CB_RELAXED), end = cb_now_ns() + ns;
    bool any = cb_lane_client_pending(link->lane) && !cb_led_by_other_locked(h);
    pthread_mutex_unlock(&h->lock);
    for (uint32_t i = 1;
         !any && cb_load64(&hot->res_sent, CB_RELAXED) == sent &&
         cb_load32(&h->n_moves, CB_RELAXED) == moves && !cb_load32(&hot->closed, CB_RELAXED);
         i++) {
        if (i % 64 == 0 && cb_now_ns() >= end)
            break;
        cb_spin_hint();
    }
    pthread_mutex_lock(&h->lock);
    cb_link_drop_locked(h, link);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* The request with an event that is wanted, or NULL. */
static struct cb_held *first_wanted(struct cb_handle *h, const struct cb_want *want)
{
    struct cb_held *q;
    if (want->kind == CB_WANT_HANDLED)
        return h->ready_handlers.first;
    if (want->kind == CB_WANT_GROUP)
        return want->group->ready.first;
    if (!want->id)
        return h->ready.first;
    q = cb_held_find_locked(h, want->id);
    return q && q->listed && !q->handler && !q->group ? q : NULL;
}

static bool is_there(struct cb_handle *h, const struct cb_want *want)
{
    if (want->kind == CB_WANT_ENDS)
        return h->n_unended == 0;
    if (want->kind == CB_WANT_PAUSE)
        return h->is_paused;
    return first_wanted(h, want) != NULL;
}

/* Why there will never be what is wanted: 0 if there may be. */
static int hopeless(struct cb_handle *h, const struct cb_want *want)
{
    const struct cb_held *q;
    if (want->kind == CB_WANT_ENDS)
        return 0;
    if (want->kind == CB_WANT_PAUSE || !want->id)
        return cb_lost(h);
    q = cb_held_find_locked(h, want->id);
    if (!q || q->told)
        return CB_NOT_FOUND;
    return q->handler || q->group ? CB_INVALID : 0;
}

static void follow_locked(struct cb_handle *h, const struct cb_want *want, uint64_t ns)
{
    struct cb_waiter w = {.want = *want};
    struct cb_waiter **at = &h->waiters;
    cb_store32(&w.word, 0, CB_RELAXED); /* as all stores to it, for who watches them */
    while (*at)
        at = &(*at)->next;
    *at = &w;
    pthread_mutex_unlock(&h->lock);
    if (!cb_load32(&w.word, CB_RELAXED)) /* what it tells of is looked at under the lock */
        cb_doorbell_wait(&w.word, 0, ns < NET_NS ? ns : NET_NS);
    pthread_mutex_lock(&h->lock);
    for (at = &h->waiters; *at != &w;)
        at = &(*at)->next;
    *at = w.next;
    /* Exact, under the lock: whatever ends a wait sets the words of those who wait for it. */
    if (!cb_load32(&w.word, CB_RELAXED) && (is_there(h, want) || hopeless(h, want)))
        h->wake_missed++;
}

/* Looks for the next daemon, or waits for the thread that does, or for the time of the next look. */
static void away_locked(struct cb_handle *h, const struct cb_want *want, uint64_t ns, int *ringp)
{
    uint64_t idle_ns;
    if (is_there(h, want))
        return;
    idle_ns = cb_reconnect_idle_ns(h);
    ns = ns < SLICE_NS ? ns : SLICE_NS; /* cancels are looked for in between */
    if (idle_ns == 0)
        cb_resume_locked(h, ns, ringp);
    else
        follow_locked(h, want, ns < idle_ns ? ns : idle_ns);
}

int cb_await_locked(struct cb_handle *h, const struct cb_want *want, int64_t timeout_ms, int *ringp)
{
    uint64_t begin = 0, deadline = FOREVER, now, net = 0, spin_ns = 0;
    bool suspects = false; /* the last scan found some */
    bool spun = h->wait_mode == CB_WAIT_ECO || (h->wait_mode == CB_WAIT_BALANCED && !h->spin_ns);
    int r;
    for (;;) {
        if (is_there(h, want))
            return 0;
        *ringp |= cb_drain_locked(h);
        if (is_there(h, want))
            return 0;
        r = hopeless(h, want);
        if (r)
            return r;
        if (!timeout_ms) {
            cb_life_locked(h, false);
            if (h->is_away)
                cb_resume_locked(h, cb_reconnect_patience_ns(h), ringp);
            r = hopeless(h, want);
            return is_there(h, want) ? 0 : r ? r : CB_TIMEOUT;
        }
        if (*ringp) { /* before any sleep: requests wait, and the daemon sleeps */
            *ringp = 0;
            pthread_mutex_unlock(&h->lock);
            cb_ring(h);
            pthread_mutex_lock(&h->lock);
            continue;
        }
        now = cb_now_ns();
        if (!begin) {
            begin = now;
            net = now + NET_NS;
            if (timeout_ms > 0 && (uint64_t)timeout_ms < (FOREVER - now) / 1000000u)
                deadline = now + (uint64_t)timeout_ms * 1000000u;
        }
        if (now >= deadline)
            return CB_TIMEOUT;
        if (h->is_away) {
            cb_sweep_locked(h);
            away_locked(h, want, deadline - now, ringp);
            continue;
        }
        if (now >= net) {
            suspects = !cb_led_by_other_locked(h) && cb_scan_locked(h, suspects);
            net = now + NET_NS;
            continue;
        }
        if (!spun) {
            spin_ns = h->wait_mode == CB_WAIT_SPIN ? SLICE_NS : h->spin_ns;
            spun = h->wait_mode == CB_WAIT_BALANCED;
            spin_locked(h, spin_ns < deadline - now ? spin_ns : deadline - now);
            cb_life_locked(h, false);
        } else if (cb_led_by_other_locked(h)) {
            follow_locked(h, want, deadline - now);
        } else {
            lead_locked(h, deadline - now);
        }
    }
}

/* Takes the next event, and its request's result so far if that is wanted. */
static int wait_for(struct cb_handle *h, uint64_t id, struct cb_event *event,
                    struct cb_result *result, int64_t timeout_ms)
{
    const struct cb_want want = {.kind = CB_WANT_EVENT, .id = id};
    struct cb_held *q;
    int ring = 0, r;
    pthread_mutex_lock(&h->lock);
    r = cb_await_locked(h, &want, timeout_ms, &ring);
    if (!r) {
        q = first_wanted(h, &want);
        cb_take_locked(h, q, event);
        /* A result that tells of the end is the last one. */
        while (result && q->state >= CB_REQUEST_ENDED && cb_has_event(q))
            cb_take_locked(h, q, event);
        if (result)
            cb_fill_result_locked(h, q, result);
    }
    cb_pass_lead_locked(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 1;
}

int cb_group_wait(struct cb_handle *h, struct cb_group *group, struct cb_event *event,
                  int64_t timeout_ms)
{
    const struct cb_want want = {.kind = CB_WANT_GROUP, .group = group};
    int ring = 0, r;
    pthread_mutex_lock(&h->lock);
    r = cb_await_locked(h, &want, timeout_ms, &ring);
    if (!r)
        cb_take_locked(h, group->ready.first, event);
    cb_pass_lead_locked(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 1;
}

int cb_wait(struct cb_handle *h, uint64_t id, struct cb_event *event, int64_t timeout_ms)
{
    int r = cb_enter(h);
    if (r || !event || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    return wait_for(h, id, event, NULL, timeout_ms);
}

int cb_get_result(struct cb_handle *h, uint64_t id, struct cb_result *result, int64_t timeout_ms)
{
    struct cb_event event;
    int r = cb_enter(h);
    if (r || !result || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    memset(result, 0, sizeof(*result));
    return wait_for(h, id, &event, result, timeout_ms);
}

/* ---- handlers -------------------------------------------------------------------------------- */

/* Runs the handler for one event; the lock is off meanwhile. The handler may release the request
 * and the slot may be in use again when it returns: the id tells. */
static int handle_locked(struct cb_handle *h, struct cb_held *q)
{
    struct cb_event event;
    cb_handler_fn *handler = q->handler;
    void *arg = q->handler_arg;
    q->busy = true;
    cb_take_locked(h, q, &event);
    pthread_mutex_unlock(&h->lock);
    handler(h, &event, arg);
    pthread_mutex_lock(&h->lock);
    if (cb_load64(&q->id, CB_RELAXED) != event.id)
        return 0;
    q->busy = false;
    if (q->told && q->flags & CB_AUTO_RELEASE)
        return cb_held_free_locked(h, q);
    cb_make_ready_locked(h, q);
    return 0;
}

int cb_set_handler(struct cb_handle *h, uint64_t id, cb_handler_fn *handler, void *arg)
{
    struct cb_held *q;
    int r = cb_enter(h);
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (!q || q->told || q->group) {
        r = CB_NOT_FOUND;
    } else if (!handler && q->flags & CB_AUTO_RELEASE) {
        r = CB_INVALID;
    } else {
        cb_unlist_locked(h, q);
        q->handler = handler;
        q->handler_arg = arg;
        cb_wake_locked(h, id, !handler); /* whoever waited in the other way: no event comes there */
        cb_make_ready_locked(h, q);
    }
    pthread_mutex_unlock(&h->lock);
    return r ? cb_fail(r) : 0;
}

int cb_dispatch(struct cb_handle *h, int64_t timeout_ms)
{
    const struct cb_want want = {.kind = CB_WANT_HANDLED};
    int n = 0, r = cb_enter(h), ring = 0;
    if (r || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    pthread_mutex_lock(&h->lock);
    r = cb_await_locked(h, &want, timeout_ms, &ring);
    /* No drain in between: what is there now, and what handlers add, is all. */
    while (!r && h->ready_handlers.first) {
        ring |= handle_locked(h, h->ready_handlers.first);
        n++;
    }
    cb_pass_lead_locked(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return !r || r == CB_TIMEOUT ? n : cb_fail(r);
}

/* ---- event loops ----------------------------------------------------------------------------- */

int cb_fd(struct cb_handle *h)
{
    int r = cb_enter(h);
    if (!r && h->kind != CB_KIND_EVENT_LOOP)
        r = CB_INVALID;
    if (r)
        return cb_fail(r);
    if (h->reconnect)
        return cb_reconnect_fd(h);
    const struct cb_link *link = h->link;
    return link->sock;
}

int cb_arm(struct cb_handle *h)
{
    uint32_t bell;
    int r = cb_enter(h), ring = 0;
    if (!r && h->kind != CB_KIND_EVENT_LOOP)
        r = CB_INVALID;
    if (r)
        return cb_fail(r);
    pthread_mutex_lock(&h->lock);
    if (!h->is_away) {
        const struct cb_link *link = h->link;
        h->leader_parked = true; /* from whoever led: what comes now is the loop's */
        h->leader = pthread_self();
        if (!empty_socket(link)) {
            ring = cb_drain_locked(h);
            cb_lose_locked(h, CB_LOST);
        }
        cb_lane_client_unpark(link->lane);
        cb_lane_client_park(link->lane, &bell); /* what it sees, the recipe's last poll sees */
    }
    if (h->reconnect)
        cb_reconnect_arm_locked(h);
    r = cb_lost(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
    return r ? cb_fail(r) : 0;
}
