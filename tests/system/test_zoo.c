/* The beasts of zoo.h, one by one and all together, as root and as nobody, each beside a client
 * that keeps the rules: its results stay what they are, and in the end nothing is left of theirs. */
#include <criterion/criterion.h>
#include <stdio.h>
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

enum { NOBODY = 65534, HEALTHY = 20999, STRANGERS = 21000 };

static void start(struct system *s)
{
    system_init(s);
    system_start(s, SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true",
                             "--num_blocks", "2048"));
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
    bool is_root = geteuid() == 0;
    struct storm st;
    struct system s;
    storm_init(&st, &scale);
    start(&s);
    storm_answer_all(&st, &s);
    finish(&s);
    struct storm_member member = {.storm = &st, .n_rounds = 3};
    for (const struct beast *b = beasts; b->cell; b++) {
        start(&s);
        for (int as_root = !is_root; as_root < 2; as_root++) {
            struct crowd c;
            crowd_init(&c, &s);
            crowd_add_as(&c, is_root ? HEALTHY : geteuid(), storm_member_run, &member);
            crowd_add_as(&c, as_root ? geteuid() : NOBODY, b->fn, (void *)b);
            crowd_join(&c);
            crowd_fini(&c);
        }
        finish(&s);
    }
    storm_fini(&st);
}

Test(zoo, beasts_of_the_lane_one_by_one)
{
    one_by_one(zoo_memory);
}

Test(zoo, beasts_of_the_socket_one_by_one)
{
    one_by_one(zoo_socket);
}

/* Each a user of its own, so that none is kept out for what others did. */
Test(zoo, all_together)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become other users\n");
        return;
    }
    storm_init(&st, &scale);
    start(&s);
    storm_answer_all(&st, &s);
    crowd_init(&c, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 10};
    for (uint32_t i = 0; i < 2; i++)
        crowd_add_as(&c, HEALTHY, storm_member_run, &member);
    uint32_t n = 0;
    for (const struct beast *b = zoo_memory; b->cell; b++)
        crowd_add_as(&c, STRANGERS + n++, b->fn, (void *)b);
    for (const struct beast *b = zoo_socket; b->cell; b++)
        crowd_add_as(&c, STRANGERS + n++, b->fn, (void *)b);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    /* Who lies about cursors waits until it is thrown out; others may be gone before they are. */
    cr_expect_geq(system_counter(&s, "lane_broken"), 6);
    for (const struct zoo_cell *cell = zoo_elsewhere; cell->cell; cell++)
        fprintf(stderr, "not here: %s: %s\n", cell->cell, cell->where);
    finish(&s);
    storm_fini(&st);
}
