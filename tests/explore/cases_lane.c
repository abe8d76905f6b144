/* What a lane promises while both sides are awake: records and runs are whole, ends come after
 * their tokens, merged TOKENS lose none, slots and runs are reused only when both are done with
 * them. */
#include "tests/explore/world.h"
#include "tests/explore/cases.h"

enum { POLLS = 3 };

/* ---- one request, from submit to end --------------------------------------------------------- */

static void submit_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, NULL);
}

static void submit_init_wrap(void)
{
    world_init(&(struct world_shape){2, 16, 4, UINT64_MAX - 1}, NULL);
}

static void submit_client(void)
{
    explore_claim(world_submit(2), "an empty lane was full");
    for (int i = 0; i < POLLS; i++)
        world_consume();
}

static void submit_daemon(void)
{
    for (int i = 0; i < 2; i++) {
        if (!world_intake())
            continue;
        world_flush();
        world_token(0, 0);
        world_flush();
        world_token(0, 1);
        world_end(0);
        world_flush();
        return;
    }
}

/* ---- merging: an unread TOKENS entry stands for all tokens that come meanwhile --------------- */

static void merge_build(void)
{
    world_submit(3);
    world_intake();
    world_flush();
    world_consume(); /* ACCEPTED */
}

static void merge_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, merge_build);
}

static void merge_client(void)
{
    for (int i = 0; i < POLLS; i++)
        world_consume();
}

static void merge_daemon(void)
{
    for (uint32_t i = 0; i < 3; i++) {
        world_token(0, i);
        world_flush();
    }
}

/* Everything the threads did is visible now. What the client has not read must still be
 * announced. */
static void merge_check(void)
{
    uint32_t before = world.n_seen[0];

    world_adopt();
    if (world_consume())
        return;
    explore_claim(before == 3, "tokens were left behind without an entry");
}

/* ---- reuse: the second request takes the run that the first one gave back -------------------- */

static void reuse_build(void)
{
    world_submit(2);
    world_intake();
    world_token(0, 0);
    world_token(0, 1);
    world_end(0);
    world_flush();
}

static void reuse_init(void)
{
    world_init(&(struct world_shape){2, 16, 2, 0}, reuse_build); /* room for one run */
}

static void reuse_client(void)
{
    world_consume(); /* reads the first run, frees it */
    explore_claim(world_submit(2), "a free slot was refused");
    for (int i = 0; i < POLLS; i++)
        world_consume();
}

static void reuse_daemon(void)
{
    for (int i = 0; i < 2; i++) {
        if (!world_intake())
            continue;
        world_token(1, 0);
        world_token(1, 1);
        world_end(1);
        world_flush();
        return;
    }
}

/* The same while a request ahead waits for that very run, and the slot itself is submitted into
 * again before the daemon has seen it freed. */
static void ahead_client(void)
{
    world_submit(2); /* slot 1: waits for the run of slot 0 */
    while (world_consume_one() && !world.n_ended)
        ;
    world_submit(2); /* slot 0 again */
}

/* ---- the slot table, read without any entry, as by the safety net and after a death ---------- */

static void scan_build(void)
{
    world_submit(2);
}

static void scan_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, scan_build);
}

static void record_daemon(void)
{
    world_intake();
    world_token(0, 0);
}

static void end_build(void)
{
    world_submit(2);
    world_intake();
}

static void end_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, end_build);
}

static void end_daemon(void)
{
    world_token(0, 0);
    world_end(0);
}

static void scan_client(void)
{
    struct cb_slot_view view;
    uint32_t id;

    cb_lane_client_slot(world.client, 0, &view);
    if (!view.gen)
        return;
    explore_claim(view.gen == 1 && view.ids && view.out_cap == 2 && view.n_prompt == 1,
                  "a record was read before it was whole");
    explore_claim(view.state != CB_SLOT_FINISHED ||
                      (view.emitted == 1 && view.finish == CB_FINISH_LENGTH),
                  "an end was read before it was whole");
    if (!view.emitted)
        return;
    cb_copy_in(&id, view.ids, sizeof id);
    explore_claim(id == WORLD_FIRST_TOKEN, "a token was not the one written");
}

/* ---- cancels: a late one of an old generation must not undo a newer one ---------------------- */

static void cancel_build(void)
{
    for (int i = 0; i < 2; i++) { /* slots 0 and 1: first generation, over */
        world_submit(1);
        world_intake();
        world_token((uint32_t)i, 0);
        world_end((uint32_t)i);
        world_flush();
        world_consume();
    }
    world_submit(1); /* slot 0, second generation */
    world_intake();
    world_flush();
    world_consume();
}

static void cancel_init(void)
{
    world_init(&(struct world_shape){2, 16, 4, 0}, cancel_build);
}

static void cancel_old(void)
{
    world_bell_daemon(cb_lane_client_cancel(world.client, 0, 1));
}

static void cancel_new(void)
{
    world_bell_daemon(cb_lane_client_cancel(world.client, 0, 2));
}

static void cancel_check(void)
{
    uint32_t slots[WORLD_SLOTS_MAX];

    world_adopt();
    explore_claim(cb_lane_look_cancels(world.lane, slots) == 1 && slots[0] == 0,
                  "a late cancel undid a newer one");
}

/* The same while the client submits into the slot anew, which puts its word back to 0. */
static void reuse_cancel_build(void)
{
    world_submit(1);
    world_intake();
    world_token(0, 0);
    world_end(0);
    world_flush();
    world_consume();
}

static void reuse_cancel_init(void)
{
    world_init(&(struct world_shape){1, 16, 4, 0}, reuse_cancel_build);
}

static void submit_and_cancel(void)
{
    explore_claim(world_submit(1), "a free slot was refused");
    cancel_new();
}

/* Taken in before the cancel is seen, or not: it is cancelled in the end. */
static void take_in(void)
{
    world_intake();
    world_flush();
}

static void reuse_cancel_check(void)
{
    uint32_t slots[WORLD_SLOTS_MAX];

    world_adopt();
    world_intake();
    world_flush();
    if (cb_lane_look_cancels(world.lane, slots))
        return;
    world_consume();
    explore_claim(world.n_ended == 2 && world.last[0] == CB_SLOT_CANCELLED,
                  "a late cancel, or the reuse of its slot, undid a newer one");
}

/* ---- cancel against finish: one end, whichever ----------------------------------------------- */

static void finish_daemon(void)
{
    uint32_t slots[WORLD_SLOTS_MAX];

    if (cb_lane_look_cancels(world.lane, slots)) {
        struct cb_lane_end end = {.state = CB_SLOT_CANCELLED, .finish = CB_FINISH_CANCELLED};

        cb_lane_end(world.lane, 0, &end);
    } else {
        world_token(0, 0);
        world_end(0);
    }
    world_flush();
}

static void finish_client(void)
{
    for (int i = 0; i < POLLS; i++)
        world_consume();
}

static void finish_check(void)
{
    world_adopt();
    world_consume();
    explore_claim(world.n_ended == 3, "a request ended not once");
}

static const struct explore_case cases[] = {
    {.name = "submit to end",
     .n_threads = 2,
     .init = submit_init,
     .thread = {submit_client, submit_daemon}},
    {.name = "submit to end, near 2^64",
     .n_threads = 2,
     .init = submit_init_wrap,
     .thread = {submit_client, submit_daemon}},
    {.name = "merging of TOKENS",
     .n_threads = 2,
     .init = merge_init,
     .thread = {merge_client, merge_daemon},
     .check = merge_check},
    {.name = "free against reuse of a run",
     .n_threads = 2,
     .init = reuse_init,
     .thread = {reuse_client, reuse_daemon}},
    {.name = "free against reuse, one ahead waits",
     .n_threads = 2,
     .init = reuse_init,
     .thread = {ahead_client, reuse_daemon}},
    {.name = "slot table without entries, a record",
     .n_threads = 2,
     .init = scan_init,
     .thread = {scan_client, record_daemon}},
    {.name = "slot table without entries, an end",
     .n_threads = 2,
     .init = end_init,
     .thread = {scan_client, end_daemon}},
    {.name = "two cancels against reuse",
     .n_threads = 2,
     .init = cancel_init,
     .thread = {cancel_old, cancel_new},
     .check = cancel_check},
    {.name = "two cancels against reuse, as it is submitted",
     .n_threads = 3,
     .init = reuse_cancel_init,
     .thread = {cancel_old, submit_and_cancel, take_in},
     .check = reuse_cancel_check},
    {.name = "cancel against finish",
     .n_threads = 3,
     .init = cancel_init,
     .thread = {cancel_new, finish_daemon, finish_client},
     .check = finish_check},
};
const struct explore_list cases_lane = {cases, sizeof cases / sizeof cases[0]};
