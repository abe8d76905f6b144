/* The basic flows on each loop body: io_uring, and epoll for where that is refused. */
#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

#include "tests/system/raw.h"
#include "tests/system/storm.h"

TestSuite(loops, .timeout = 120);

static void basic_flows(const char *loop)
{
    struct storm st;
    struct system s;
    struct crowd c;
    struct raw half;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--loop", loop));
    json_t *status = system_cbctl(&s, SETTINGS("status"));
    const char *name = json_string_value(json_object_get(status, "loop"));
    cr_assert(name && strstr(name, loop), "the loop is %s", name);
    json_decref(status);
    storm_init(&st, &(struct storm_scale){.seed = 61,
                                          .n_vocab = 49152,
                                          .n_distinct = 64,
                                          .prompt_usual = 30,
                                          .prompt_max = 200,
                                          .new_usual = 30,
                                          .new_max = 100});
    storm_answer_all(&st, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 2, .cancels = true};
    struct storm_member looper = {.storm = &st, .n_rounds = 2, .kind = CB_KIND_EVENT_LOOP};
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < 8; i++)
        crowd_add(&c, storm_member_run, i % 2 ? &looper : &member);
    crowd_signal(&c, 0, SIGKILL);
    crowd_join(&c);
    crowd_fini(&c);
    /* One that never says HELLO is hung up on, by the loop's own timer. */
    cr_assert(raw_connect(&half, &s));
    _Alignas(8) char record[CB_RECORD_BYTES];
    int type;
    while ((type = raw_receive(&half, record)) > 0)
        ;
    cr_expect_eq(type, 0, "a silent connection is kept");
    raw_close(&half);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_eq(system_counter(&s, "watchdog"), 0);
    system_fini(&s);
    storm_fini(&st);
}

Test(loops, uring)
{
    basic_flows("uring");
}

Test(loops, epoll)
{
    basic_flows("epoll");
}
