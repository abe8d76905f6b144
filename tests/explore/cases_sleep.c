/* Both sleep/wake pairs: whoever sleeps is woken for everything that concerns it. A wake that is
 * lost shows as a deadlock. */
#include "tests/explore/world.h"
#include "tests/explore/cases.h"

/* ---- the client sleeps ----------------------------------------------------------------------- */

static void active_build(void)
{
    world_submit(2);
    world_intake();
    world_flush();
    world_consume(); /* ACCEPTED */
}

static void futex_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, active_build);
}

static void socket_init(void)
{
    futex_init();
    world.socket_bells = true;
    world.socket_room = 1;
}

/* A notice, say, lies there unread. */
static void full_socket_init(void)
{
    socket_init();
    world.socket = 1;
}

static void two_tokens(void)
{
    world_token(0, 0);
    world_flush();
    world_token(0, 1);
    world_end(0);
    world_flush();
}

/* Named lanes: the count is no part of them. */
static void semaphore_init(void)
{
    static cb_atomic32 count;

    futex_init();
    world.semaphore = &count;
}

/* Two tokens and no end: nothing later makes up for a wake that was lost. */
static void two_merged(void)
{
    world_token(0, 0);
    world_flush();
    world_token(0, 1);
    world_flush();
}

static void close_lane(void)
{
    cb_lane_close(world.lane, CB_CLOSED_STOPPED);
    world_flush();
}

static void notice_lane(void)
{
    cb_lane_notice(world.lane, CB_NOTICE_DRAINING);
    world_flush();
}

/* Latency mode: sleeps on the bell word, or on a semaphore, of which it takes away before what is left
 * of sleeps that are over (client/wait.c). */
static void client_sleep(void)
{
    uint32_t bell;

    while (world.semaphore && world_semaphore_try())
        ;
    if (world.semaphore) {
        if (cb_lane_client_park(world.client, &bell) == CB_LANE_NOTHING)
            world_semaphore_wait();
    } else if (cb_lane_client_park(world.client, &bell) == CB_LANE_NOTHING)
        explore_futex_wait(cb_lane_client_bell_word(world.client), bell);
    cb_lane_client_unpark(world.client);
}

static void wait_end(void)
{
    while (!world.n_ended) {
        if (!world_consume())
            client_sleep();
    }
}

static void wait_two(void)
{
    while (world.n_seen[0] < 2) {
        if (!world_consume())
            client_sleep();
    }
}

static void wait_closed(void)
{
    while (cb_lane_client_closed(world.client) == CB_CLOSED_NO)
        client_sleep();
}

static void wait_notice(void)
{
    while (!cb_lane_client_notice(world.client))
        client_sleep();
}

static bool is_readable(void *arg)
{
    (void)arg;
    return world.socket > 0;
}

/* Event-loop mode, the recipe of the manual: poll, arm (empty the socket, then announce), poll,
 * return to the loop. A full socket counts as an answer. */
static void loop_end(void)
{
    for (;;) {
        uint32_t bell;

        while (world_consume())
            ;
        explore_kernel();
        world.socket = 0;
        cb_lane_client_park(world.client, &bell);
        while (world_consume())
            ;
        if (world.n_ended)
            return;
        explore_until(is_readable, NULL);
    }
}

/* ---- the daemon sleeps ----------------------------------------------------------------------- */

static void empty_init(void)
{
    world_init(&(struct world_shape){2, 16, 32, 0}, NULL); /* room for two runs */
}

static void submit_twice(void)
{
    world_submit(1);
    world_submit(1);
}

static void serve_two(void)
{
    world_serve_until(2);
}

/* A request waits for the run that an ended one still holds. */
static void run_build(void)
{
    active_build();
    world_token(0, 0);
    world_end(0);
    world_flush();
}

static void run_init(void)
{
    world_init(&(struct world_shape){2, 16, 2, 0}, run_build);
}

static void submit_then_read(void)
{
    world_submit(2);
    while (world_consume_one() && !world.n_ended)
        ;
}

/* A request waits for places in the result ring. */
static void room_build(void)
{
    for (uint32_t i = 0; i < 2; i++) {
        world_submit(1);
        world_intake();
        world_token(i, 0);
        world_flush();
        world_end(i);
        world_flush();
    }
    world_submit(1);
    world_intake();
}

static void room_init(void)
{
    world_init(&(struct world_shape){3, 8, 40, 0}, room_build);
}

static void read_two(void)
{
    world_consume_one();
    world_consume_one();
}

static void serve_three(void)
{
    world_serve_until(3);
}

/* A waiting request is cancelled: the daemon must hear of it, though nothing else moves. */
static void waiting_build(void)
{
    run_build();
    world_submit(2);
    world_intake();
    world_flush();
}

static void waiting_init(void)
{
    world_init(&(struct world_shape){2, 16, 2, 0}, waiting_build);
}

static void cancel_waiting(void)
{
    world_bell_daemon(cb_lane_client_cancel(world.client, 1, 1));
}

static void serve_cancelled(void)
{
    struct cb_lane_info info;

    do {
        world_intake();
        world_flush();
        cb_lane_info(world.lane, &info);
        if (info.n_requests < 2)
            world_sleep(false);
    } while (info.n_requests < 2);
}

/* While paused no step looks at cancels, so the sleeper must. */
static void cancel_active(void)
{
    world_bell_daemon(cb_lane_client_cancel(world.client, 0, 1));
}

static void paused_until_cancel(void)
{
    uint32_t slots[WORLD_SLOTS_MAX];

    while (!cb_lane_look_cancels(world.lane, slots))
        world_sleep(true);
}

/* ---- the client pauses ----------------------------------------------------------------------- */

static uint32_t n_when_paused;

/* What it sees of the answer when the pause is acted on is all there will be. */
static void pause_until_seen(void)
{
    world_bell_daemon(cb_lane_client_pause(world.client, true));
    while (!cb_lane_client_is_paused(world.client)) {
        if (!world_consume())
            client_sleep();
    }
    n_when_paused = cb_lane_client_emitted(world.client, 0);
}

/* The loop: look, a step if there may be one and a look again before what it gave is told, flush;
 * sleeps when there is nothing to do. */
static void serve_until_paused(void)
{
    for (uint32_t i = 0; !cb_lane_look_pause(world.lane);) {
        if (i < 1) {
            (void)cb_lane_look_pause(
                world.lane); /* then one flush tells the token and the answer */
            world_token(0, i++);
        } else {
            world_sleep(false);
        }
        world_flush();
    }
    world_flush();
}

static void check_paused(void)
{
    world_adopt();
    explore_claim(n_when_paused == cb_lane_client_emitted(world.client, 0),
                  "a token came after the pause was acted on");
}

#define CASE(label, first, client, daemon)                                         \
    {                                                                              \
        .name = label, .n_threads = 2, .init = first, .thread = { client, daemon } \
    }
static const struct explore_case cases[] = {
    CASE("park/ring by futex", futex_init, wait_end, two_tokens),
    CASE("park/ring by socket, room for one", socket_init, loop_end, two_tokens),
    CASE("park/ring by socket, full at first", full_socket_init, loop_end, two_tokens),
    CASE("park/ring, merged tokens", futex_init, wait_two, two_merged),
    CASE("park/ring by semaphore", semaphore_init, wait_end, two_tokens),
    CASE("park/ring by semaphore, merged tokens", semaphore_init, wait_two, two_merged),
    CASE("park/close by semaphore", semaphore_init, wait_closed, close_lane),
    CASE("park/notice by semaphore", semaphore_init, wait_notice, notice_lane),
    CASE("park/close", futex_init, wait_closed, close_lane),
    CASE("park/notice", futex_init, wait_notice, notice_lane),
    CASE("doze/ring, requests", empty_init, submit_twice, serve_two),
    CASE("doze/ring, waiting for a run", run_init, submit_then_read, serve_two),
    CASE("doze/ring, waiting for room", room_init, read_two, serve_three),
    CASE("doze/ring, a waiting one cancelled", waiting_init, cancel_waiting, serve_cancelled),
    CASE("doze/ring, paused and cancelled", futex_init, cancel_active, paused_until_cancel),
    {.name = "pause/answer",
     .n_threads = 2,
     .init = futex_init,
     .thread = {pause_until_seen, serve_until_paused},
     .check = check_paused},
};
const struct explore_list cases_sleep = {cases, sizeof cases / sizeof cases[0]};
