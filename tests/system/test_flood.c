/* One user sends 10,000 prompts, hundreds of them at any time; another one a short prompt now and then.
 * Counted in steps of the real daemon: how long the latter waits for its first token, and what the
 * flood loses by it. That the count is exact, policies/a_flood_does_not_hold_up_another_user shows, where
 * nothing but steps makes time pass. Here a client that has its turn late counts some steps too many. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/stats.h"
#include "tests/system/crowd.h"
#include "tests/system/raw.h"

TestSuite(flood, .timeout = 240);

enum { FLOODER = 64001, N_FLOOD = 10000, N_HELD = 512, N_NEW = 8, PROBES_MAX = 200 };
enum { STEPS_BETWEEN = 60, IDS = 10 };

/* The daemon's page of counters, whose name it tells whoever connects. */
static const void *map_status(const struct system *s)
{
    struct stat st;
    struct raw r;
    cr_assert(raw_open(&r, s));
    int fd = shm_open(r.welcome.status_name, O_RDONLY, 0);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0, "%s", r.welcome.status_name);
    const void *page = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    cr_assert(page != MAP_FAILED && cb_stats_attach(page, (size_t)st.st_size) == 0);
    close(fd);
    raw_close(&r);
    return page;
}

static int on_progress(const struct cb_progress *progress, void *arg)
{
    (void)progress;
    crowd_move(arg);
    return 0;
}

static void floods(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_prompt *prompts = calloc(N_FLOOD, sizeof *prompts);
    uint32_t(*ids)[IDS] = calloc(N_FLOOD, sizeof *ids);
    struct cb_options options;
    struct cb_batch batch;
    struct cb_outputs *outputs;
    (void)i;
    (void)arg;
    member_expect(c, prompts && ids, "no memory");
    for (uint32_t k = 0; k < N_FLOOD; k++) {
        for (uint32_t n = 0; n < IDS; n++)
            ids[k][n] = 1 + (k + n * 7919) % 40000;
        prompts[k].ids = ids[k];
        prompts[k].n_ids = IDS;
    }
    cb_options_init(&options);
    options.n_slots = N_HELD;
    struct cb_handle *h = crowd_open(c, &options);
    struct cb_request config;
    cb_request_init(&config);
    config.flags = CB_IGNORE_EOS;
    cb_batch_init(&batch);
    batch.prompts = prompts;
    batch.n_prompts = N_FLOOD;
    batch.config = &config;
    batch.max_new_tokens = N_NEW;
    batch.flags = CB_BATCH_NO_WARMUP;
    batch.progress = on_progress;
    batch.progress_arg = c;
    crowd_there(c);
    member_expect(c, cb_generate_batch(h, &batch, &outputs) == 0, "%s", cb_message());
    cb_outputs_free(outputs);
    cb_close(h);
}

/* Steps from before one is sent until its first token has come. */
static uint64_t probe(struct cb_handle *h, const void *status, uint32_t salt)
{
    uint32_t ids[IDS];
    struct cb_request r;
    struct cb_event event;
    uint64_t id, first = cb_stats_read(status, CB_STAT_steps);
    for (uint32_t n = 0; n < IDS; n++)
        ids[n] = 41000 + (salt * 31 + n) % 8000;
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = IDS;
    r.max_new_tokens = 2;
    r.flags = CB_IGNORE_EOS;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
    uint64_t n = cb_stats_read(status, CB_STAT_steps) - first;
    cr_assert_gt(event.n_ids, 0);
    while (event.type != CB_EVENT_END)
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
    cb_release(h, id);
    return n;
}

static int ascending(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The steps that the flood took; waits[] of the probes beside it, if there are to be any. */
static uint64_t flood(const char *scheduler, uint64_t *waits, uint32_t *np)
{
    struct system s;
    struct crowd c;
    uint32_t n = 0;
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "1500", "--null_context", "4096",
                              "--max_requests_per_batch", "32", "--scheduler", scheduler,
                              "--socket_mode", "0666", "--socket_trust", "true"));
    const void *status = map_status(&s);
    crowd_init(&c, &s);
    crowd_add_as(&c, FLOODER, floods, NULL);
    struct cb_handle *h = system_open(&s, NULL);
    system_await(&s, "requests_waiting", N_HELD / 2);
    while (waits && n < PROBES_MAX &&
           cb_stats_read(status, CB_STAT_requests_waiting) > N_HELD / 4) {
        uint64_t next = cb_stats_read(status, CB_STAT_steps) + STEPS_BETWEEN;
        while (cb_stats_read(status, CB_STAT_steps) < next &&
               cb_stats_read(status, CB_STAT_requests_waiting) > 0)
            nap();
        waits[n] = probe(h, status, n);
        n++;
    }
    crowd_join(&c);
    crowd_fini(&c);
    uint64_t n_steps = cb_stats_read(status, CB_STAT_steps);
    cr_expect_geq(cb_stats_read(status, CB_STAT_requests_finished), N_FLOOD + n);
    cb_close(h);
    system_settle(&s);
    system_fini(&s);
    if (waits) {
        *np = n;
        qsort(waits, n, sizeof *waits, ascending);
    }
    return n_steps;
}

Test(flood, of_one_user_holds_up_no_other)
{
    uint64_t waits[PROBES_MAX];
    uint32_t n = 0;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become another user\n");
        return;
    }
    uint64_t alone = flood("auto", NULL, NULL), beside = flood("auto", waits, &n);
    cr_assert_geq(n, 15);
    cr_log_info("%lu steps alone, %lu beside %u, which wait %lu to %lu steps, half of them %lu",
                (unsigned long)alone, (unsigned long)beside, n, (unsigned long)waits[0],
                (unsigned long)waits[n - 1], (unsigned long)waits[n / 2]);
    /* The step under way, and its own; half of them see no more, nor does any see the queue, which is
     * 120 steps long. */
    cr_expect_leq(waits[n / 2], 3);
    cr_expect_leq(waits[n * 99 / 100], 40);
    cr_expect_leq(beside * 100, alone * 105);
    flood("fifo", waits, &n);
    cr_expect_gt(waits[n / 2], 60, "fifo would do as well: %lu", (unsigned long)waits[n / 2]);
}
