/* A great many requests of the null model through one daemon, under a cache too small for them, with
 * a pool beside it. Once it has done some of all that it will have to do, it may have no more address
 * space than it has then, and must have as many pages at every look as at the first.
 *
 * And a great many through one that sleeps before each of them, as does the client: no wake is missed,
 * and none needs the net that would catch it.
 *
 * CB_SOAK_REQUESTS says how many (`make soak-null`: a million); by default it is a short form. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/system/fixture.h"

enum { N_HANDLES = 2, N_SLOTS = 64, N_LOOKS = 5, PROMPT_MAX = 60, NEW_MAX = 40 };

TestSuite(soak, .timeout = 1800);

struct soak {
    struct system s;
    struct cb_handle *handles[N_HANDLES];
    uint64_t random;
    uint32_t n_running;
    uint64_t n_sent, n_due, n_ended;
};

static uint32_t draw(struct soak *k, uint32_t n)
{
    k->random = k->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((k->random >> 33) % n);
}

/* One request, whose prompt nobody else has; a part of it may begin like others. */
static void submit(struct soak *k, struct cb_handle *h)
{
    uint32_t ids[PROMPT_MAX], n = 4 + draw(k, PROMPT_MAX - 3),
                              n_alike = draw(k, 2) ? draw(k, n) : 0;
    static const uint32_t stop_id = 7;
    static const struct cb_string stop = {"zq", 2};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i < n_alike ? i : 100 + draw(k, 40000);
    ids[n - 2] = 100 + (uint32_t)(k->n_sent >> 15);
    ids[n - 1] = 100 + (uint32_t)(k->n_sent & 0x7fff);
    r.ids = ids;
    r.n_ids = n;
    r.max_new_tokens = 1 + draw(k, NEW_MAX);
    /* All have stops, so that no place for them is first used late. */
    r.stop_ids = &stop_id;
    r.n_stop_ids = 1;
    r.stops = &stop;
    r.n_stops = 1;
    r.flags = CB_FINAL_ONLY;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    k->n_sent++;
    k->n_running++;
    if (draw(k, 64) == 0)
        cr_assert_eq(cb_cancel(h, id), 0);
}

static void take(struct soak *k, struct cb_handle *h, const struct cb_event *e)
{
    cr_assert_eq(e->type, CB_EVENT_END);
    cr_assert(e->end == CB_END_STOP || e->end == CB_END_EOS || e->end == CB_END_LENGTH ||
                  e->end == CB_END_CANCELLED,
              "a request ends with %u, status %d", e->end, e->status);
    cr_assert_eq(cb_release(h, e->id), 0);
    k->n_running--;
    k->n_ended++;
}

/* Sends until n_due were sent, as many at once as there are slots, and waits for all. */
static void run(struct soak *k, uint64_t n)
{
    uint32_t n_of[N_HANDLES] = {0};
    struct cb_event e;
    k->n_due += n;
    while (k->n_sent < k->n_due || k->n_running > 0)
        for (int i = 0; i < N_HANDLES; i++) {
            struct cb_handle *h = k->handles[i];
            for (; n_of[i] < N_SLOTS && k->n_sent < k->n_due; n_of[i]++)
                submit(k, h);
            if (n_of[i] == 0)
                continue;
            cr_assert_eq(cb_wait(h, 0, &e, HANG_MS), 1, "%s", cb_message());
            do {
                take(k, h, &e);
                n_of[i]--;
            } while (cb_poll(h, &e) == 1);
        }
}

/* A figure of /proc/PID/status, in KiB. */
static uint64_t figure(const struct soak *k, const char *name)
{
    char path[64], line[256];
    unsigned long value = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/status", k->s.pid);
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f))
        found = strncmp(line, name, strlen(name)) == 0 &&
                sscanf(line + strlen(name), ": %lu", &value) == 1;
    fclose(f);
    cr_assert(found, "%s has no %s", path, name);
    return value;
}

static uint64_t memory(const struct soak *k)
{
    return figure(k, "RssAnon") + figure(k, "RssShmem") + figure(k, "VmSwap");
}

/* From now on the daemon gets no more address space than it has. */
static void shut(const struct soak *k)
{
    uint64_t bytes = figure(k, "VmSize") << 10;
    const struct rlimit limit = {bytes, bytes};
    cr_assert_eq(prlimit(k->s.pid, RLIMIT_AS, &limit, NULL), 0);
}

/* The last results are told before the daemon has counted what they leave behind. */
static void await_idle(const struct soak *k)
{
    uint64_t end_ms = now_ms() + HANG_MS;
    while (system_counter(&k->s, "requests_active") + system_counter(&k->s, "requests_waiting") >
               0 ||
           system_counter(&k->s, "blocks_free") != system_counter(&k->s, "blocks_total")) {
        cr_assert_lt(now_ms(), end_ms, "requests or blocks are left");
        nap();
    }
}

static void look(const struct soak *k, uint64_t memory_kib)
{
    cr_expect_eq(system_counter(&k->s, "violations"), 0);
    cr_expect_eq(system_counter(&k->s, "requests_failed"), 0);
    cr_expect_eq(system_counter(&k->s, "blocks_aside"), 0);
    if (!IS_SANITIZED)
        cr_expect_eq(memory(k), memory_kib, "after %lu requests: %lu KiB, not %lu",
                     (unsigned long)k->n_ended, (unsigned long)memory(k),
                     (unsigned long)memory_kib);
}

Test(soak, memory_is_flat_and_the_audit_clean)
{
    static struct soak k = {.random = 1};
    const char *wanted = getenv("CB_SOAK_REQUESTS");
    uint64_t n = wanted ? strtoull(wanted, NULL, 10) : IS_SANITIZED ? 2000 : 20000;
    system_init(&k.s);
    /* 128 requests of 4 blocks on average, and 7 at most. */
    system_start(&k.s,
                 SETTINGS("--model", "null", "--page_size", "16", "--num_blocks", "160",
                          "--cpu_offload_space", "0.000001", "--max_batch_tokens", "256",
                          "--step_ms_max", "0", "--null_context", "1024", "--safety_margin", "0"));
    for (int i = 0; i < N_HANDLES; i++) {
        struct cb_options options;
        cb_options_init(&options);
        options.n_slots = N_SLOTS;
        options.arena_bytes = 64 << 10;
        options.pool_bytes = 64 << 10;
        k.handles[i] = system_open(&k.s, &options);
    }
    run(&k, n / 4);
    await_idle(&k);
    uint64_t memory_kib = memory(&k);
    if (!IS_SANITIZED)
        shut(&k);
    for (int i = 0; i < N_LOOKS; i++) {
        run(&k, (n - n / 4) / N_LOOKS);
        await_idle(&k);
        look(&k, memory_kib);
    }
    cr_expect_eq(k.n_ended, k.n_sent);
    cr_expect_gt(system_counter(&k.s, "prefix_hits"), 0);
    cr_expect_gt(system_counter(&k.s, "blocks_evicted"), 0);
    cr_expect_gt(system_counter(&k.s, "offloads"), 0);
    cr_expect_gt(system_counter(&k.s, "soft_resets"), 0);
    for (int i = 0; i < N_HANDLES; i++)
        cb_close(k.handles[i]);
    system_fini(&k.s);
}

/* ---- asleep ----------------------------------------------------------------------------------- */

/* One request after the other from one client, for others would wake the daemon in its stead: at each
 * both sides sleep and are woken. */
static void sleep_through(const char *net_ms, uint64_t n)
{
    const uint32_t ids[] = {7, 8, 9};
    struct cb_options options;
    struct cb_request r;
    struct cb_event e;
    struct cb_info info;
    struct system s;
    uint64_t id;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--wait_mode", "eco", "--net_ms", net_ms));
    cb_options_init(&options);
    options.wait_mode = CB_WAIT_ECO;
    struct cb_handle *h = system_open(&s, &options);
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = 3;
    r.max_new_tokens = 1;
    r.flags = CB_IGNORE_EOS | CB_FINAL_ONLY;
    for (uint64_t i = 0; i < n; i++) {
        cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
        cr_assert_eq(cb_wait(h, id, &e, 3 * HANG_MS), 1, "request %lu: %s", (unsigned long)i,
                     cb_message());
        cr_assert_eq(e.type, CB_EVENT_END);
        cr_assert_eq(cb_release(h, id), 0);
    }
    cb_info(h, &info);
    cr_expect_eq(info.wake_missed, 0);
    cr_expect_eq(system_counter(&s, "requests_finished"), n);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_gt(system_counter(&s, "bells_received"), 0);
    cb_close(h);
    system_fini(&s);
}

Test(soak, no_wake_is_missed)
{
    const char *wanted = getenv("CB_SOAK_REQUESTS");
    uint64_t n = wanted ? strtoull(wanted, NULL, 10) : IS_SANITIZED ? 1000 : 10000;
    sleep_through("10000", n);
    sleep_through("3600000", n); /* off, as good as: a wake that is missed hangs */
}
