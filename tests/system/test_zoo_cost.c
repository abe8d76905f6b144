/* What a bad client costs the others: how many tokens a healthy client gets beside each beast of the
 * zoo, against beside a process that spins on memory of its own, in pairs that take turns. Only when it
 * is asked for (make bench-zoo); it prints, and judges nothing but that the daemon bears it.
 *
 *   CB_ZOO_PAIRS    of each beast
 *   CB_ZOO_MS       of each half of a pair, 250
 *   CB_ZOO_STEP_US  how long a step of the null model takes, 1000; `model`: the real one
 *   CB_ZOO_ONLY     beasts whose names have this in them
 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/pace.h"
#include "tests/system/zoo.h"

TestSuite(zoo_cost, .timeout = 3600);

enum {
    SPENT_MS = 2500, /* in so long who does his worst has spent it */
    STREAMS = 8,
    PAIRS_MAX = 100,
    HEALTHY_UID = 20999,
    BEAST_UIDS = 21000
};

static const char *word_of(const char *name, const char *otherwise)
{
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

/* ---- who takes part ------------------------------------------------------------------------------ */

/* STREAMS requests at any time, until it is killed. */
static void healthy(struct crowd *c, uint32_t i, void *arg)
{
    struct pace *pace = arg;
    struct cb_options options;
    uint64_t last_ns[STREAMS] = {0};
    uint32_t prompt[32];
    (void)i;
    cb_options_init(&options);
    options.n_slots = STREAMS;
    struct cb_handle *h = crowd_open(c, &options);
    for (uint32_t k = 0; k < 32; k++)
        prompt[k] = 100 + k;
    for (uint64_t n = 0;; n++) {
        struct cb_request r;
        struct cb_event event = {.user = n};
        uint64_t id;
        while (n >= STREAMS) {
            int got = cb_wait(h, 0, &event, HANG_MS);
            member_expect(c, got == 1, "no event: %d, %s", got, cb_message());
            member_expect(c, event.type != CB_EVENT_REJECTED, "%s", cb_strerror(event.status));
            pace_note(pace, event.n_ids, &last_ns[event.user]);
            if (event.type == CB_EVENT_END)
                break;
        }
        if (n >= STREAMS)
            cb_release(h, event.id);
        cb_request_init(&r);
        r.ids = prompt;
        r.n_ids = 32;
        r.max_new_tokens = 64;
        r.flags = CB_IGNORE_EOS;
        r.user = event.user;
        last_ns[event.user] = 0;
        prompt[0] = (uint32_t)n % 40000;
        member_expect(c, cb_submit(h, &r, &id) == 0, "%s", cb_message());
    }
}

/* Over and over; in a group of its own, with the children it may have. */
static void beast_for_ever(struct crowd *c, uint32_t i, void *arg)
{
    const struct beast *b = arg;
    setpgid(0, 0);
    for (;;)
        b->fn(c, i, (void *)b);
}

static void spins(struct crowd *c, uint32_t i, void *arg)
{
    enum { N_WORDS = 1 << 18 };
    volatile uint32_t *words = calloc(N_WORDS, sizeof *words);
    uint64_t random = i;
    (void)arg;
    setpgid(0, 0);
    member_expect(c, words, "no memory");
    for (;;)
        words[draw(&random, N_WORDS)] ^= draw(&random, UINT32_MAX);
}

/* ---- pairs ----------------------------------------------------------------------------------------- */

static void sleep_ms(uint32_t ms)
{
    for (uint64_t end = now_ms() + ms; now_ms() < end;)
        nap();
}

/* Tokens a second of the healthy one beside this. */
static double beside(struct crowd *c, struct pace *pace, uid_t uid, crowd_fn *fn,
                     const struct beast *b, uint32_t warm_ms, uint32_t ms)
{
    uint32_t who = crowd_add_as(c, uid, fn, (void *)b);
    sleep_ms(warm_ms);
    pace_clear(pace);
    uint64_t begun = pace_now_ns();
    sleep_ms(ms);
    double n = (double)atomic_load(&pace->n_tokens);
    double seconds = (double)(pace_now_ns() - begun) / 1e9;
    kill(-c->pids[who], SIGKILL);
    crowd_signal(c, who, SIGKILL);
    c->n--; /* its place is the next one's */
    sleep_ms(50);
    return n / seconds;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const struct beast *b, struct pace *pace, uint32_t n_pairs, uint32_t ms,
                    bool is_real)
{
    static uid_t next_uid = BEAST_UIDS;
    uid_t uid = geteuid() == 0 ? next_uid++ : geteuid();
    double ratios[PAIRS_MAX], rates[2][PAIRS_MAX];
    uint64_t p99[2] = {0};
    struct system s;
    struct crowd c;
    bool is_root = geteuid() == 0;
    system_init(&s);
    system_start(&s, is_real ? SETTINGS("--model", default_model(), "--socket_mode", "0666",
                                        "--socket_trust", "true")
                             : SETTINGS("--model", "null", "--null_step_us",
                                        word_of("CB_ZOO_STEP_US", "1000"), "--socket_mode", "0666",
                                        "--socket_trust", "true", "--num_blocks", "2048"));
    crowd_init(&c, &s);
    crowd_add_as(&c, is_root ? HEALTHY_UID : geteuid(), healthy, pace);
    /* A user may save up a tenth of a second of the loop's time (daemon/allowance.h): not to be counted. */
    (void)beside(&c, pace, uid, beast_for_ever, b, SPENT_MS, 10);
    for (uint32_t i = 0; i < n_pairs; i++) {
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t which = (half + i) % 2; /* 1: the beast */
            rates[which][i] = beside(&c, pace, uid, which ? beast_for_ever : spins, b, 200, ms);
            p99[which] += pace_gap_us(pace, 0.99);
        }
        ratios[i] = rates[0][i] / rates[1][i];
    }
    qsort(ratios, n_pairs, sizeof *ratios, ascending);
    qsort(rates[0], n_pairs, sizeof **rates, ascending);
    qsort(rates[1], n_pairs, sizeof **rates, ascending);
    double cost = 100 * (ratios[n_pairs / 2] - 1);
    fprintf(stderr, "%8.0f %8.0f %+7.2f %%  (%+.1f to %+.1f) %7llu %7llu  %s%s\n",
            rates[0][n_pairs / 2], rates[1][n_pairs / 2], cost, 100 * (ratios[n_pairs / 4] - 1),
            100 * (ratios[3 * n_pairs / 4] - 1), (unsigned long long)(p99[0] / n_pairs),
            (unsigned long long)(p99[1] / n_pairs), b->cell, cost > 2 ? "  OVER" : "");
    if (atomic_load(&c.shared->n_failed))
        fprintf(stderr, "    it says: %s\n", c.shared->why);
    crowd_fini(&c);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "watchdog"), 0);
    cr_expect_eq(system_counter(&s, "violations"), 0);
    system_fini(&s);
}

static void beside_each(const struct beast *beasts)
{
    uint32_t n_pairs = (uint32_t)atoi(word_of("CB_ZOO_PAIRS", "0"));
    uint32_t ms = (uint32_t)atoi(word_of("CB_ZOO_MS", "250"));
    bool is_real = strcmp(word_of("CB_ZOO_STEP_US", ""), "model") == 0;
    if (n_pairs == 0 || n_pairs > PAIRS_MAX || (is_real && !default_model())) {
        fprintf(stderr, "skipped: see make bench-zoo\n");
        return;
    }
    struct pace *pace = pace_new();
    cr_assert(pace);
    fprintf(stderr, "tokens/s beside one who spins, and beside the beast; what it costs more "
                    "(quartiles); p99 of gaps in us, likewise\n");
    for (const struct beast *b = beasts; b->cell; b++)
        if (strstr(b->cell, word_of("CB_ZOO_ONLY", "")))
            measure(b, pace, n_pairs, ms, is_real);
    pace_free(pace);
}

Test(zoo_cost, beside_beasts_of_the_lane)
{
    beside_each(zoo_memory);
}

Test(zoo_cost, beside_beasts_of_the_socket)
{
    beside_each(zoo_socket);
}

Test(zoo_cost, beside_beasts_of_a_life)
{
    beside_each(zoo_life);
}
