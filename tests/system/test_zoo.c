/* The beasts of zoo.h, one by one and all together, as the daemon's own user, as root and as nobody, each
 * beside a client that keeps the rules: its results stay what they are, and in the end nothing is left
 * of theirs. How fast its tokens come is printed, alone and beside them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/zoo.h"

TestSuite(zoo, .timeout = 300);

static const struct storm_scale scale = {.seed = 81,
                                         .n_vocab = 49152,
                                         .n_distinct = 24,
                                         .prompt_usual = 30,
                                         .prompt_max = 200,
                                         .new_usual = 20,
                                         .new_max = 60};

enum { DAEMON = 1, NOBODY = 65534, HEALTHY = 20999, STRANGERS = 21000 };

/* As root the daemon becomes `daemon`, whose number is the same everywhere. */
static void start(struct system *s)
{
    system_init(s);
    system_start(s, SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true",
                             "--num_blocks", "2048", geteuid() == 0 ? "--user" : NULL, "daemon"));
}

static void say_pace(const struct pace *p, const char *where)
{
    fprintf(stderr, "p50 %llu us, p99 %llu us between events: %s\n",
            (unsigned long long)pace_gap_us(p, 0.5), (unsigned long long)pace_gap_us(p, 0.99),
            where);
}

static void finish(struct system *s)
{
    system_settle(s);
    cr_expect_eq(system_counter(s, "watchdog"), 0);
    cr_expect_eq(system_counter(s, "violations"), 0);
    cr_expect_eq(system_counter(s, "requests_failed"), 0);
    system_fini(s);
}

/* Each on a daemon of its own: a lane that broke a rule keeps its user out for a while. */
static void one_by_one(const struct beast *beasts)
{
    const uid_t as[] = {NOBODY, geteuid(), DAEMON};
    bool is_root = geteuid() == 0;
    struct pace *pace = pace_new();
    struct storm st;
    struct system s;
    cr_assert(pace);
    storm_init(&st, &scale);
    start(&s);
    storm_answer_all(&st, &s);
    finish(&s);
    struct storm_member member = {.storm = &st, .n_rounds = 3, .pace = pace};
    const struct beast nobody = {"alone", NULL, 0};
    for (const struct beast *b = &nobody; b->cell; b = b == &nobody ? beasts : b + 1) {
        start(&s);
        pace_clear(pace);
        for (int who = !is_root; who < (is_root ? 3 : 2); who++) {
            struct crowd c;
            crowd_init(&c, &s);
            crowd_add_as(&c, is_root ? HEALTHY : geteuid(), storm_member_run, &member);
            if (b->fn)
                crowd_add_as(&c, as[who], b->fn, (void *)b);
            crowd_join(&c);
            crowd_fini(&c);
        }
        say_pace(pace, b->cell);
        finish(&s);
    }
    storm_fini(&st);
    pace_free(pace);
}

Test(zoo, beasts_of_the_lane_one_by_one)
{
    one_by_one(zoo_memory);
}

Test(zoo, beasts_of_the_socket_one_by_one)
{
    one_by_one(zoo_socket);
}

Test(zoo, beasts_of_a_life_one_by_one)
{
    one_by_one(zoo_life);
}

/* Two healthy clients join the crowd; until all of it is done. */
static void beside(struct crowd *c, const struct storm *st, uint32_t n_rounds, const char *where)
{
    struct pace *pace = pace_new();
    cr_assert(pace);
    struct storm_member member = {.storm = st, .n_rounds = n_rounds, .pace = pace};
    for (uint32_t i = 0; i < 2; i++)
        crowd_add_as(c, HEALTHY, storm_member_run, &member);
    crowd_join(c);
    say_pace(pace, where);
    pace_free(pace);
}

/* A daemon, what it answers, and room for those who are to be beside the healthy ones, each a user of its
 * own. */
struct open_day {
    struct storm st;
    struct system s;
    struct crowd c;
};

/* False, and said, where there is only one user to be. */
static bool open_day_begin(struct open_day *o)
{
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become other users\n");
        return false;
    }
    storm_init(&o->st, &scale);
    start(&o->s);
    storm_answer_all(&o->st, &o->s);
    crowd_init(&o->c, &o->s);
    return true;
}

static void open_day_end(struct open_day *o)
{
    crowd_fini(&o->c);
    finish(&o->s);
    storm_fini(&o->st);
}

struct mutation {
    uint64_t until_ms;
    _Atomic uint32_t *n_broken; /* of all mutators */
};

static void mutator(struct crowd *c, uint32_t i, void *arg)
{
    const struct mutation *m = arg;
    atomic_fetch_add(m->n_broken, zoo_mutate(c, i, m->until_ms));
}

/* CB_MUTATOR_SECONDS, 4. Two of them are one user, who is held off for what both did. */
Test(zoo, mutators_for_a_while, .timeout = 3600)
{
    const char *seconds = getenv("CB_MUTATOR_SECONDS");
    struct open_day o;
    if (!open_day_begin(&o))
        return;
    struct mutation m = {.n_broken = &o.c.shared->n_there}; /* nobody waits for that here */
    m.until_ms = now_ms() + 1000 * (uint64_t)(seconds ? atoi(seconds) : 4);
    for (uint32_t i = 0; i < 4; i++)
        crowd_add_as(&o.c, STRANGERS + i / 2, mutator, &m);
    beside(&o.c, &o.st, 10, "beside mutators");
    uint32_t n_broken = atomic_load(m.n_broken);
    cr_expect_gt(n_broken, 0);
    cr_expect_geq(system_counter(&o.s, "lane_broken"), n_broken,
                  "the clients read it in more lanes");
    open_day_end(&o);
}

/* Who breaks a rule is told so in the lane, and is refused for a while; nobody else is. */
static void breaks_a_rule(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    struct cb_refused refused;
    (void)arg;
    for (uint32_t n = 1; n <= 3; n++) {
        struct cage k;
        member_expect(c, cage_open(&k, c, i), "no lane");
        struct cb_up_hot *hot = k.raw.up.base;
        cb_store64(&hot->req_sent, UINT64_MAX / 2, CB_RELEASE);
        while (raw_send_plain(&k.raw, CB_RECORD_BELL))
            nap();
        uint64_t closed_ms = now_ms();
        member_expect(c, cb_lane_client_closed(k.lc) == CB_CLOSED_BROKEN, "no reason in the lane");
        cage_close(&k);
        struct raw r;
        member_expect(c, raw_connect(&r, c->system) && raw_send(&r, &hello, sizeof hello),
                      "no way");
        int type = raw_receive(&r, record);
        if (now_ms() - closed_ms < 900) { /* or this process stood still, and it may be over */
            memcpy(&refused, record, sizeof refused);
            member_expect(c, type == CB_RECORD_REFUSED && refused.status == CB_BUSY,
                          "after %u: welcomed by %d", n, type);
        }
        raw_close(&r);
        crowd_move(c);
    }
}

Test(zoo, who_breaks_rules_is_told_and_held_off)
{
    struct open_day o;
    if (!open_day_begin(&o))
        return;
    crowd_add_as(&o.c, NOBODY, breaks_a_rule, NULL);
    beside(&o.c, &o.st, 3, "beside one who is held off"); /* opens a lane each round */
    cr_expect_eq(system_counter(&o.s, "lane_broken"), 3);
    open_day_end(&o);
}

/* All lanes, all slots, the largest prompts, of ten users at once. */
Test(zoo, all_users_at_their_limits)
{
    static const char *const greedy[] = {"largest prompts", "lanes to the limit", "n children",
                                         "half a HELLO", "connect and drop"};
    struct open_day o;
    uint32_t n = 0;
    if (!open_day_begin(&o))
        return;
    for (size_t g = 0; g < 2 * sizeof greedy / sizeof greedy[0]; g++)
        for (const struct beast *b = zoo_socket; b->cell; b++)
            if (strncmp(b->cell, greedy[g / 2], strlen(greedy[g / 2])) == 0)
                crowd_add_as(&o.c, STRANGERS + n++, b->fn, (void *)b);
    cr_assert_geq(n, 8);
    beside(&o.c, &o.st, 3, "beside all users at their limits");
    open_day_end(&o);
}

/* Each a user of its own, so that none is kept out for what others did. */
Test(zoo, all_together)
{
    struct open_day o;
    if (!open_day_begin(&o))
        return;
    uint32_t n = 0;
    for (const struct beast *b = zoo_memory; b->cell; b++)
        crowd_add_as(&o.c, STRANGERS + n++, b->fn, (void *)b);
    for (const struct beast *b = zoo_socket; b->cell; b++)
        crowd_add_as(&o.c, STRANGERS + n++, b->fn, (void *)b);
    for (const struct beast *b = zoo_life; b->cell; b++)
        crowd_add_as(&o.c, STRANGERS + n++, b->fn, (void *)b);
    beside(&o.c, &o.st, 10, "beside the whole zoo");
    system_settle(&o.s);
    /* Who lies about cursors waits until it is thrown out; others may be gone before they are. */
    cr_expect_geq(system_counter(&o.s, "lane_broken"), 6);
    for (const struct zoo_cell *cell = zoo_elsewhere; cell->cell; cell++)
        fprintf(stderr, "not here: %s: %s\n", cell->cell, cell->where);
    open_day_end(&o);
}
