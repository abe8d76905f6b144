/* Families: one entry, several slots. All are admitted or none is, so a family waits for more than
 * a request alone does: for places in the ring for each of them, for a run each, and only the cancel
 * of the last of them ends its waiting. Once admitted, each child has a life of its own. */
#include "tests/explore/world.h"
#include "tests/explore/cases.h"

/* ---- a ring that is nearly full -------------------------------------------------------------- */

/* Eight places. An ended request left three entries in them, and two children need seven. */
static void ring_build(void)
{
    world_submit(1);
    world_intake();
    world_token(0, 0);
    world_flush();
    world_end(0);
    world_flush();
    world_submit_many(2, 1);
    world_intake();
    world_flush();
}

static void ring_init(void)
{
    world_init(&(struct world_shape){3, 8, 48, 0}, ring_build);
}

/* Just as many as it takes. */
static void read_two(void)
{
    world_consume_one();
    world_consume_one();
}

/* Everything of both children then fits, though nobody reads any more. */
static void serve_both(void)
{
    world_serve_until(2);
    for (uint32_t slot = 1; slot < 3; slot++)
        world_token(slot, 0);
    world_flush();
    for (uint32_t slot = 1; slot < 3; slot++)
        world_end(slot);
    world_flush();
}

static void check_both(void)
{
    world_adopt();
    world_consume();
    explore_claim(world.n_ended == 3, "a child's end is not in the ring");
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Room for two runs, of which an ended request holds one: a family of two has one run too few. */
static void runs_build(void)
{
    world_submit(1);
    world_intake();
    world_token(0, 0);
    world_end(0);
    world_flush();
    world_submit_many(2, 1);
    world_intake();
    world_flush();
}

static void runs_init(void)
{
    world_init(&(struct world_shape){3, 16, 32, 0}, runs_build);
}

static void read_end(void)
{
    while (world_consume_one() && !world.n_ended)
        ;
}

static void serve_family(void)
{
    world_serve_until(2);
}

/* One child has ended, the other runs on, and between them they hold both runs. */
static void one_ended_build(void)
{
    world_submit_many(2, 1);
    world_intake();
    world_token(0, 0);
    world_end(0);
    world_flush();
    world_consume_one(); /* ACCEPTED, both */
    world_consume_one();
}

static void one_ended_init(void)
{
    world_init(&(struct world_shape){3, 16, 32, 0}, one_ended_build);
}

/* What is submitted next gets the run of the child that ended, once that was read, and no other. */
static void submit_and_read(void)
{
    explore_claim(world_submit(1), "a free slot was refused");
    for (int i = 0; i < 3; i++)
        world_consume();
}

static void serve_other(void)
{
    for (int i = 0; i < 2; i++) {
        if (!world_intake())
            continue;
        world_token(2, 0);
        world_end(2);
        break;
    }
    world_token(1, 0);
    world_end(1);
    world_flush();
}

/* ---- cancels --------------------------------------------------------------------------------- */

static void cancel_child(uint32_t slot)
{
    world_bell_daemon(cb_lane_client_cancel(world.client, slot, 1));
}

/* It waits for runs until all of it are cancelled; of one of them the daemon hears for nothing. */
static void cancel_all(void)
{
    cancel_child(2);
    cancel_child(1);
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

static void check_cancelled(void)
{
    world_adopt();
    world_consume();
    explore_claim(world.n_ended == 3 && world.last[1] == CB_SLOT_CANCELLED &&
                      world.last[2] == CB_SLOT_CANCELLED,
                  "a child that was cancelled while it waited has another end, or none");
}

/* One child is cancelled while the family is taken in: the other has its tokens in any case. */
static void pair_build(void)
{
    world_submit_many(2, 1);
}

static void pair_init(void)
{
    world_init(&(struct world_shape){2, 16, 32, 0}, pair_build);
}

static void cancel_first(void)
{
    cancel_child(0);
}

static void serve_pair(void)
{
    const struct cb_lane_end cancelled = {.state = CB_SLOT_CANCELLED,
                                          .finish = CB_FINISH_CANCELLED};
    uint32_t slots[WORLD_SLOTS_MAX];

    explore_claim(world_intake() == 1, "one child's cancel kept its family out");
    if (cb_lane_look_cancels(world.lane, slots)) {
        explore_claim(slots[0] == 0, "a child is cancelled that should not be");
        cb_lane_end(world.lane, 0, &cancelled);
    } else {
        world_token(0, 0);
        world_end(0);
    }
    world_token(1, 0);
    world_end(1);
    world_flush();
}

static void check_pair(void)
{
    world_adopt();
    world_consume();
    explore_claim(world.n_ended == 2 && world.last[1] == CB_SLOT_FINISHED,
                  "a child was cancelled with its sibling");
}

static const struct explore_case cases[] = {
    {.name = "family, a nearly full ring",
     .n_threads = 2,
     .init = ring_init,
     .thread = {read_two, serve_both},
     .check = check_both},
    {.name = "family, waiting for runs",
     .n_threads = 2,
     .init = runs_init,
     .thread = {read_end, serve_family}},
    {.name = "family, free of one against reuse",
     .n_threads = 2,
     .init = one_ended_init,
     .thread = {submit_and_read, serve_other}},
    {.name = "family, a waiting one cancelled",
     .n_threads = 2,
     .init = runs_init,
     .thread = {cancel_all, serve_cancelled},
     .check = check_cancelled},
    {.name = "family, one cancelled as it is taken in",
     .n_threads = 2,
     .init = pair_init,
     .thread = {cancel_first, serve_pair},
     .check = check_pair},
};
const struct explore_list cases_family = {cases, sizeof cases / sizeof cases[0]};
