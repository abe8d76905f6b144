/* A daemon that dies again and again, at any moment, also before it serves, under sixteen clients whose
 * requests are resumable: each of their streams is whole, and what it would have been. CB_KILLS says how
 * often (`make soak-kills`: a thousand times); by default it is a short form. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/system/stream.h"

TestSuite(kills, .timeout = 3600);

enum { N_CLIENTS = 16, N_KILLS = 24, KILL_HANG_MS = 300000 };

#define DAEMON SETTINGS("--model", "null", "--null_step_us", "300")

static void client(struct crowd *c, uint32_t i, void *arg)
{
    const struct streams *st = arg;
    enum stream_way way = (enum stream_way)(i % STREAM_WAYS);
    struct cb_options options;
    struct cb_info info;
    stream_options(&options, way);
    struct cb_handle *h = crowd_open(c, &options);
    crowd_there(c);
    for (uint32_t k = 0; k < STREAM_KINDS || atomic_load(&c->shared->go) == 0; k++)
        stream_run(c, st, h, (i / STREAM_WAYS + k) % STREAM_KINDS, way, KILL_HANG_MS);
    cb_info(h, &info);
    member_expect(c, info.n_reconnects > 0, "it has seen no kill");
    member_expect(c, info.wake_missed == 0, "%llu wakes were missed",
                  (unsigned long long)info.wake_missed);
    cb_close(h);
}

static uint32_t draw(uint64_t *random, uint32_t n) /* below n */
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % n;
}

static void wait_ms(uint32_t ms)
{
    for (; ms > 0; ms--)
        nap();
}

/* Ends it and starts the next one, which now and then does not come to serve either. */
static void kill_one(struct system *s, uint64_t *random)
{
    system_signal(s, SIGKILL);
    cr_assert_eq(system_wait(s), -SIGKILL);
    system_spawn_as(s, geteuid(), DAEMON);
    if (draw(random, 8) == 0) {
        wait_ms(draw(random, 30));
        system_signal(s, SIGKILL);
        (void)system_wait(s);
        system_spawn_as(s, geteuid(), DAEMON);
    }
    cr_assert(system_is_ready(s));
}

Test(kills, every_stream_is_whole)
{
    static struct streams st;
    const char *word = getenv("CB_KILLS");
    uint32_t n_kills = word ? (uint32_t)atoi(word) : N_KILLS;
    uint64_t random = n_kills;
    struct cb_options options;
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, DAEMON);
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = system_open(&s, &options);
    streams_learn(&st, h);
    cb_close(h);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        crowd_add(&c, client, &st);
    crowd_await(&c, N_CLIENTS);
    for (uint32_t k = 0; k < n_kills; k++) {
        wait_ms(10 + draw(&random, 90));
        kill_one(&s, &random);
        cr_assert_eq(atomic_load(&c.shared->n_failed), 0, "after %u kills: %s", k + 1,
                     c.shared->why);
        if (k % 100 == 99)
            fprintf(stderr, "%u kills, %u events\n", k + 1, atomic_load(&c.shared->n_moves));
    }
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
}
