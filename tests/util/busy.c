/* The two have twice as many requests there as a step takes, so some wait all the time. How long
 * anyone waits is held against a bound on the work that can come before: what is there, once more
 * for each other user, and what resets compute again. */
#include "tests/util/busy.h"

#include <stdio.h>
#include <string.h>

#include "tests/util/sim.h"

enum { JOBS = 24, STEPS = 400, WAIT_MOST = 2500, FAMILY_MOST = 3 };

struct busy {
    struct timed t;
    struct timed_shape shape;
    uint64_t random;
    uint32_t weights[TIMED_USERS], n_users;
    struct timed_job jobs[TIMED_USERS][JOBS], like[TIMED_USERS];
    uint32_t n_prompt_max; /* of all requests */
    struct busy_report *report;
};

static void found(struct busy *b, const char *what, uint64_t n, uint64_t most)
{
    if (!b->report->error[0])
        snprintf(b->report->error, sizeof b->report->error,
                 "step %llu, scheduler %d: %s, %llu where %llu are allowed",
                 (unsigned long long)b->t.n_steps, b->shape.scheduler, what, (unsigned long long)n,
                 (unsigned long long)most);
}

static int begin(struct busy *b)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_FAIR, SCHEDULER_AUTO, SCHEDULER_PRIORITY};
    struct share_weights weights = {0};
    uint64_t *r = &b->random;
    b->shape = (struct timed_shape){.scheduler = kinds[sim_draw(r, 3)],
                                    .n_blocks = 16 + sim_draw(r, 60),
                                    .ageing_ms = 1 + sim_draw(r, 2)};
    b->n_users = 2 + sim_draw(r, 3);
    for (uint32_t i = 0; i < TIMED_USERS; i++) {
        b->weights[i] = sim_draw(r, 2) ? 1 : 1 + sim_draw(r, 4);
        weights.of[weights.n++] = (struct share_weight){.uid = i, .weight = b->weights[i]};
        b->like[i] = (struct timed_job){.user = i,
                                        .n_prompt = 1 + sim_draw(r, sim_draw(r, 2) ? 12 : 180),
                                        .limit = 1 + sim_draw(r, sim_draw(r, 2) ? 4 : 40)};
    }
    if (timed_init(&b->t, &b->shape))
        return -1;
    engine_set_weights(b->t.engine, &weights);
    return 0;
}

/* A request, or a family, of this user in a place that is free. */
static void send_one(struct busy *b, uint32_t user)
{
    struct timed_job *jobs = b->jobs[user];
    for (uint32_t i = 0; i < JOBS; i++) {
        uint32_t n = sim_draw(&b->random, 8) ? 1 : 1 + sim_draw(&b->random, FAMILY_MOST);
        if (jobs[i].r)
            continue;
        for (uint32_t k = 1; k < n; k++)
            if (i + k == JOBS || jobs[i + k].r)
                n = k;
        jobs[i] = b->like[user];
        jobs[i].n_prompt -= sim_draw(&b->random, jobs[i].n_prompt);
        jobs[i].limit -= sim_draw(&b->random, jobs[i].limit);
        jobs[i].priority = sim_draw(&b->random, 2) ? 0 : sim_draw(&b->random, 256);
        timed_send_many(&b->t, &jobs[i], n);
        b->report->n_requests += n;
        return;
    }
}

static void send_some(struct busy *b)
{
    for (uint32_t user = 0; user < b->n_users; user++) {
        uint32_t n_there = 0, n_want = user < 2                        ? JOBS
                                       : sim_draw(&b->random, 40) == 0 ? JOBS / 2
                                                                       : 0;
        for (uint32_t i = 0; i < JOBS; i++)
            n_there += b->jobs[user][i].r != NULL;
        for (; n_there < n_want; n_there++)
            send_one(b, user);
    }
    struct timed_job *j = &b->jobs[sim_draw(&b->random, b->n_users)][sim_draw(&b->random, JOBS)];
    if (j->r && sim_draw(&b->random, 8) == 0) {
        engine_cancel(b->t.engine, j->r);
        b->report->n_cancelled++;
    }
}

static void check_fair(struct busy *b)
{
    uint32_t least = b->weights[0] < b->weights[1] ? b->weights[0] : b->weights[1];
    uint64_t bound = timed_bound(180, b->shape.n_blocks, least);
    uint64_t s[2] = {b->t.service[0] / b->weights[0], b->t.service[1] / b->weights[1]};
    uint64_t apart = s[0] > s[1] ? s[0] - s[1] : s[1] - s[0];
    if (b->shape.scheduler == SCHEDULER_PRIORITY)
        return;
    if (apart > bound)
        found(b, "two busy users are apart in service", apart, bound);
    if ((double)apart / (double)bound > b->report->closeness)
        b->report->closeness = (double)apart / (double)bound;
}

static void check_waits(struct busy *b)
{
    for (uint32_t user = 0; user < b->n_users; user++)
        for (uint32_t i = 0; i < JOBS; i++) {
            const struct timed_job *j = &b->jobs[user][i];
            uint64_t waits = j->r && j->n_tokens == 0 ? b->t.n_steps - j->submitted_step : 0;
            if (waits > WAIT_MOST)
                found(b, "a request waits for its first token, steps", waits, WAIT_MOST);
        }
}

static void run(struct busy *b)
{
    struct engine_stats stats;
    for (int i = 0; i < STEPS && !b->t.why[0] && !b->report->error[0]; i++) {
        send_some(b);
        timed_step(&b->t);
        check_fair(b);
        check_waits(b);
    }
    while (b->t.n_there > 0 && !b->t.why[0] && !b->report->error[0]) {
        timed_step(&b->t);
        check_waits(b);
    }
    engine_stats(b->t.engine, &stats);
    if (stats.n_free_blocks != stats.n_blocks)
        found(b, "blocks are lost", stats.n_blocks - stats.n_free_blocks, 0);
    b->report->n_steps = b->t.n_steps;
    b->report->n_soft_resets = stats.n_soft_resets;
    b->report->n_forks = stats.n_forks;
    b->report->digest = b->t.n_steps;
    for (uint32_t i = 0; i < TIMED_USERS; i++)
        b->report->digest = (b->report->digest ^ b->t.service[i]) * UINT64_C(0x100000001b3);
}

int busy_run(uint64_t seed, struct busy_report *report)
{
    static struct busy b;
    memset(&b, 0, sizeof b);
    memset(report, 0, sizeof *report);
    b.random = seed * UINT64_C(0x9e3779b97f4a7c15) + 11;
    b.report = report;
    if (begin(&b)) {
        snprintf(report->error, sizeof report->error, "can't make the engine");
        return -1;
    }
    run(&b);
    if (b.t.why[0] && !report->error[0])
        snprintf(report->error, sizeof report->error, "%s", b.t.why);
    timed_fini(&b.t);
    return report->error[0] ? -1 : 0;
}
