/* What the library promises to its threads: a cancel that meets the loss of its daemon is not lost, and hits
 * nothing else; nobody touches a lane that is unmapped; of threads that wait on one lane nobody sleeps beside his
 * result. */
#include "tests/explore/library.h"

#include "tests/explore/cases.h"

enum { THREADS_01 = 3, THREADS_012 = 7 };

/* ---- cancel against resume ------------------------------------------------------------------- */

static uint64_t id;

/* A request with a token is lost with its daemon, which slept. */
static void lost_build(unsigned threads)
{
    int ring;

    library_open(threads, true);
    id = library_send(0, 3, 0);
    world_intake();
    world_token(0, 0);
    world_flush();
    ring = cb_drain_locked(&library.h);
    explore_claim(!ring && library.held[0].n_seen == 1, "a token was not announced");
    cb_lane_doze(world.lane);
    library_lose_daemon();
}

static void lost_build_served(void)
{
    lost_build(THREADS_01);
}

static void lost_init_served(void)
{
    library_init(&(struct world_shape){1, 16, 8, 0}, lost_build_served);
}

static void cancel(void)
{
    explore_claim(cb_cancel(&library.h, id) == 0, "a cancel was refused");
    library_leave();
}

static void resume(void)
{
    library_resume();
    library_leave();
}

/* The next daemon, until it has the request or nobody is there to send one. Each of its steps then looks whether
 * that is cancelled. */
static void serve(void)
{
    do {
        if (world_intake())
            return;
        world_flush();
    } while (library_await_bell());
}

/* In check: its daemon knows, or comes to know with its next step. */
static bool is_cancelled(const struct cb_held *q)
{
    struct cb_slot_view view;
    uint32_t slots[WORLD_SLOTS_MAX];

    world_intake();
    world_flush();
    cb_lane_client_slot(q->link->lane, q->slot, &view);
    return view.state == CB_SLOT_CANCELLED || cb_lane_look_cancels(world.lane, slots) == 1;
}

static void cancelled_check(void)
{
    const struct cb_held *q = &library.held[0];

    world_adopt();
    if (q->state == CB_REQUEST_ENDED) {
        explore_claim(q->end == CB_END_CANCELLED, "a cancelled request has another end");
        return;
    }
    explore_claim(q->link == &library.links[1], "a request waits though there is a daemon");
    explore_claim(q->link && is_cancelled(q), "a cancelled request runs on with the next daemon");
}

static void served_check(void)
{
    const struct cb_held *q = &library.held[0];
    struct cb_slot_view view;

    world_adopt();
    if (q->link) {
        cb_lane_client_slot(q->link->lane, q->slot, &view);
        explore_claim(view.gen == q->gen, "the next daemon sleeps beside a request");
    }
    cancelled_check();
}

/* A bell and a cancel meet the loss of the lane, which is unmapped when it can be. */
static void lost_build_rung(void)
{
    lost_build(THREADS_012);
}

static void lost_init_rung(void)
{
    library_init(&(struct world_shape){1, 16, 8, 0}, lost_build_rung);
}

static void ring(void)
{
    cb_ring(&library.h);
}

/* No request holds the lane: all of it goes. */
static void idle_build(void)
{
    library_open(THREADS_01, true);
    library_lose_daemon();
}

static void idle_init(void)
{
    library_init(&(struct world_shape){1, 16, 8, 0}, idle_build);
}

/* Whoever leaves last, or looks later, finds that nobody needs it. */
static void idle_check(void)
{
    world_adopt();
    cb_link_reap_locked(&library.h);
    explore_claim(!library.h.older, "a lane that nobody needs stays");
}

/* A thread sleeps on the lane that is lost meanwhile, and wakes by the time alone. */
static void nap_init(void)
{
    idle_init();
    library.naps = 1;
}

static void nap(void)
{
    struct cb_event event;

    explore_claim(cb_wait(&library.h, 0, &event, 1000) == CB_TIMEOUT, "an event came from nowhere");
}

/* ---- a cancel of an index's last request ----------------------------------------------------- */

static void ended_build(void)
{
    library_open(THREADS_01, true);
    id = library_send(0, 1, 0);
    world_intake();
    world_token(0, 0);
    world_end(0);
    world_flush();
    cb_drain_locked(&library.h);
}

static void ended_init(void)
{
    library_init(&(struct world_shape){1, 16, 8, 0}, ended_build);
}

static void cancel_late(void)
{
    cb_cancel(&library.h, id); /* there may be none of this id any more */
}

/* The index's request is released, and its next one sent. */
static uint64_t send_next(void)
{
    struct cb_handle *h = &library.h;
    uint64_t next;

    pthread_mutex_lock(&h->lock);
    cb_held_free_locked(h, &library.held[0]);
    next = library_send(0, 1, 0);
    pthread_mutex_unlock(&h->lock);
    return next;
}

static void reuse_and_cancel(void)
{
    explore_claim(cb_cancel(&library.h, send_next()) == 0, "a cancel was refused");
}

/* This one is nobody's to cancel. */
static void reuse(void)
{
    (void)send_next();
}

static void spared_check(void)
{
    const struct cb_held *q = &library.held[0];

    world_adopt();
    explore_claim(!cb_is_cancelled(q) && !is_cancelled(q),
                  "a late cancel hit the index's next request");
}

static void late_check(void)
{
    const struct cb_held *q = &library.held[0];

    world_adopt();
    explore_claim(cb_is_cancelled(q), "a late cancel took a newer one's mark away");
    explore_claim(is_cancelled(q), "a late cancel undid a newer one");
}

/* ---- leader and follower --------------------------------------------------------------------- */

static void two_build(void)
{
    library_open(THREADS_01, false);
    for (uint32_t i = 0; i < LIBRARY_REQUESTS; i++)
        library_send(i, 1, CB_FINAL_ONLY);
    world_intake();
    world_flush();
    cb_drain_locked(&library.h);
}

static void two_init(void)
{
    library_init(&(struct world_shape){2, 16, 32, 0}, two_build);
}

static void impatient_init(void)
{
    two_init();
    library.times_out = 1;
}

static void end_request(uint32_t i)
{
    world_end(i);
    world_flush();
}

static void end_two(void)
{
    end_request(0);
    end_request(1);
}

static bool is_told(void *arg)
{
    (void)arg;
    return library.held[0].told;
}

static void end_one_by_one(void)
{
    end_request(0);
    explore_until(is_told, NULL);
    end_request(1);
}

static void close_lane(void)
{
    cb_lane_close(world.lane, CB_CLOSED_STOPPED);
    world_flush();
}

static void wait_for(uint32_t i, int64_t timeout_ms)
{
    uint64_t wanted = cb_load64(&library.held[i].id, CB_RELAXED);
    struct cb_event event;
    int r = cb_wait(&library.h, wanted, &event, timeout_ms);

    if (r != CB_TIMEOUT || timeout_ms == -1)
        explore_claim(r == 1 && event.id == wanted && event.type == CB_EVENT_END,
                      "a wait returned without the end it was for");
}

static void wait_0(void)
{
    wait_for(0, -1);
}

static void wait_1(void)
{
    wait_for(1, -1);
}

static void wait_0_or_leave(void)
{
    wait_for(0, 1000);
}

static void wait_any(void)
{
    struct cb_event event;

    explore_claim(cb_wait(&library.h, 0, &event, -1) == 1 && event.type == CB_EVENT_END,
                  "a wait for any event returned without one");
}

/* What cb_is_running does: takes entries, and wants none. */
static void look(void)
{
    struct cb_handle *h = &library.h;
    int ring;

    pthread_mutex_lock(&h->lock);
    ring = cb_drain_locked(h);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
}

static void end_0(void)
{
    end_request(0);
}

static void missed_check(void)
{
    explore_claim(library.h.wake_missed == 0, "a wake was missed");
}

#define CASE(label, first, t0, t1, t2, last)                                                \
    {                                                                                       \
        .name = label, .n_threads = 3, .init = first, .thread = {t0, t1, t2}, .check = last \
    }
static const struct explore_case cases[] = {
    {.name = "bell against resume",
     .n_threads = 2,
     .init = idle_init,
     .thread = {ring, library_resume},
     .check = idle_check},
    {.name = "a sleep against resume",
     .n_threads = 2,
     .init = nap_init,
     .thread = {nap, library_resume},
     .check = idle_check},
    {.name = "a late cancel spares the next request",
     .n_threads = 2,
     .init = ended_init,
     .thread = {cancel_late, reuse},
     .check = spared_check},
    {.name = "a late cancel against reuse",
     .n_threads = 2,
     .init = ended_init,
     .thread = {cancel_late, reuse_and_cancel},
     .check = late_check},
    {.name = "cancel against resume",
     .n_threads = 2,
     .init = lost_init_served,
     .thread = {cancel, resume},
     .check = cancelled_check},
    CASE("cancel and bell against resume", lost_init_rung, cancel, resume, ring, cancelled_check),
    {.name = "cancel against resume, served",
     .n_threads = 3,
     .preemptions = 3,
     .init = lost_init_served,
     .thread = {cancel, resume, serve},
     .check = served_check},
    CASE("leader beside a poll", two_init, wait_0, look, end_0, missed_check),
    CASE("leader and follower, the lane closes", two_init, wait_0, wait_1, close_lane,
         missed_check),
    CASE("leader and follower, one after the other", two_init, wait_0, wait_1, end_one_by_one,
         missed_check),
    CASE("leader and follower", two_init, wait_0, wait_1, end_two, missed_check),
    CASE("leader and follower, for any event", two_init, wait_any, wait_any, end_two, missed_check),
    {.name = "leader and follower, one times out",
     .n_threads = 3,
     .preemptions = 3,
     .init = impatient_init,
     .thread = {wait_0_or_leave, wait_1, end_two},
     .check = missed_check},
};
const struct explore_list cases_library = {cases, sizeof cases / sizeof cases[0]};
