/* What is predicted and what is said of those who wait, against what happens, on a clock that only
 * steps move (tests/util/timed.h). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/util/timed.h"

static void begin(struct timed *t, const struct timed_shape *shape)
{
    cr_assert_eq(timed_init(t, shape), 0);
}

static void end(struct timed *t)
{
    cr_expect_str_empty(t->why, "%s", t->why);
    timed_fini(t);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static struct engine_forecast guess(struct timed *w, struct timed_job *j)
{
    uint32_t prompt[TIMED_PROMPT_MAX];
    struct engine_forecast f;
    const struct request_spec spec = timed_spec(w, j, prompt);
    engine_forecast(w->engine, &spec, &f);
    return f;
}

static void check_near(uint64_t guessed, uint64_t was, const char *what)
{
    cr_expect(guessed <= was + was / 2 + 4000000 && was <= guessed + guessed / 2 + 4000000,
              "%s: guessed %.1f ms, was %.1f ms", what, (double)guessed / 1e6, (double)was / 1e6);
}

Test(forecasts, what_is_predicted_comes_near_to_what_happens)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_FIFO, SCHEDULER_PRIORITY, SCHEDULER_FAIR};
    for (int k = 0; k < 3; k++) {
        struct timed w;
        struct timed_job first = {.n_prompt = 60, .limit = 20}, queue[16], last;
        begin(&w, &(struct timed_shape){.scheduler = kinds[k]});
        cr_expect_not(guess(&w, &first).is_known, "nothing was measured yet");
        timed_send(&w, &first);
        timed_finish_all(&w);
        struct engine_forecast f = guess(&w, &first);
        cr_assert(f.is_known);
        cr_expect_eq(f.start_ns, 0, "nobody is there");
        check_near(f.finish_ns, first.end_ns, "alone");
        for (int i = 0; i < 16; i++) {
            queue[i] = (struct timed_job){.n_prompt = 200, .limit = 10};
            timed_send(&w, &queue[i]);
        }
        last = (struct timed_job){.n_prompt = 100, .limit = 30};
        f = guess(&w, &last);
        timed_send(&w, &last);
        timed_finish_all(&w);
        cr_expect_leq(f.start_ns, f.first_token_ns);
        cr_expect_leq(f.first_token_ns, f.finish_ns);
        check_near(f.start_ns, last.start_ns, "start behind a queue");
        check_near(f.first_token_ns, last.first_ns, "first token behind a queue");
        check_near(f.finish_ns, last.end_ns, "end behind a queue");
        end(&w);
    }
}

static const char *why(struct timed *w, const struct timed_job *j)
{
    static char text[600];
    engine_request_why(w->engine, j->r, text, sizeof text);
    return text;
}

#define EXPECT_WHY(w, j, part) \
    cr_expect(strstr(why(w, j), part), "'%s' lacks '%s'", why(w, j), part)

/* Sends n, which are run while *paused is false. */
static void send_pausable(struct timed *w, struct timed_job *jobs, uint32_t n, const bool *paused)
{
    uint32_t prompt[TIMED_PROMPT_MAX];
    for (uint32_t i = 0; i < n; i++) {
        jobs[i] = (struct timed_job){.n_prompt = 200, .limit = 40};
        struct request_spec spec = timed_spec(w, &jobs[i], prompt);
        spec.paused = paused;
        cr_assert_eq(engine_submit(w->engine, &spec, &jobs[i].r), 0);
        w->n_there++;
    }
}

static void pause_jobs(struct timed *w, struct timed_job *jobs, uint32_t n, bool *paused, bool now)
{
    *paused = now;
    for (uint32_t i = 0; i < n; i++)
        if (jobs[i].r)
            engine_note_pause(w->engine, jobs[i].r);
}

/* Who has paused its requests does not run, and so keeps nobody waiting: neither in line nor with
 * what it was doing, and be the machine full of it. */
Test(forecasts, what_is_paused_is_not_counted)
{
    static const enum scheduler_kind kinds[] = {SCHEDULER_FIFO, SCHEDULER_PREFILL_FIRST,
                                                SCHEDULER_PRIORITY, SCHEDULER_FAIR, SCHEDULER_AUTO};
    for (int k = 0; k < 5; k++) {
        struct timed w;
        struct timed_job first = {.n_prompt = 60, .limit = 20}, jobs[16], last;
        struct timed_job other = {.n_prompt = 20, .limit = 900};
        bool paused = true;
        begin(&w, &(struct timed_shape){.scheduler = kinds[k], .n_blocks = 8 * 14});
        timed_send(&w, &first);
        timed_finish_all(&w);
        timed_send(&w, &other); /* goes on beside them all the time */
        timed_step(&w);
        last = (struct timed_job){.n_prompt = 400, .limit = 30};
        const struct engine_forecast alone = guess(&w, &last);
        send_pausable(&w, jobs, 16, &paused);
        struct engine_forecast f = guess(&w, &last);
        cr_expect_eq(f.start_ns, 0, "all in line are paused, kind %d", k);
        cr_expect_eq(f.finish_ns, alone.finish_ns);
        pause_jobs(&w, jobs, 16, &paused, false);
        cr_expect_gt(guess(&w, &last).start_ns, 10000000u, "all in line wait, kind %d", k);
        pause_jobs(&w, jobs, 16, &paused, true);
        cr_expect_eq(guess(&w, &last).start_ns, 0, "all are paused again, kind %d", k);
        pause_jobs(&w, jobs, 16, &paused, false);
        for (int i = 0; i < 28; i++)
            timed_step(&w);
        pause_jobs(&w, jobs, 16, &paused, true);
        f = guess(&w, &last);
        cr_expect_eq(f.start_ns, 0, "those that fill the cache are, kind %d", k);
        timed_send(&w, &last);
        EXPECT_WHY(&w, &last, "is the next by the rules");
        while (last.r)
            timed_step(&w);
        check_near(f.start_ns, last.start_ns, "start");
        check_near(f.finish_ns, last.end_ns, "end");
        struct request_spec spec = timed_spec(&w, &first, (uint32_t[TIMED_PROMPT_MAX]){0});
        spec.paused = &paused;
        engine_forecast(w.engine, &spec, &f);
        cr_expect_not(f.is_known, "its own client has paused it");
        pause_jobs(&w, jobs, 16, &paused, false);
        timed_finish_all(&w);
        end(&w);
    }
}

Test(forecasts, limits_that_nobody_uses_are_not_counted_in_full)
{
    struct timed w;
    struct timed_job j = {.n_prompt = 20, .limit = 1000};
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_FIFO});
    timed_send(&w, &j);
    timed_step(&w);
    engine_cancel(w.engine, j.r);
    timed_finish_all(&w);
    uint64_t before = guess(&w, &j).finish_ns;
    cr_expect_gt(before, 999 * UINT64_C(1000000), "a cancel says nothing of limits");
    uint32_t prompt[20] = {7}, eos = 300;
    struct request_spec spec = {.prompt = prompt,
                                .n_prompt = 20,
                                .max_new_tokens = 1000,
                                .stop_ids = &eos,
                                .n_stop_ids = 1,
                                .top_p = 1,
                                .owner = &j};
    for (int i = 0; i < 100; i++) {
        w.n_there++;
        cr_assert_eq(engine_submit(w.engine, &spec, &j.r), 0);
        timed_finish_all(&w);
    }
    cr_expect_lt(guess(&w, &j).finish_ns, before / 10);
    end(&w);
}

/* ---- why ------------------------------------------------------------------------------------- */

Test(forecasts, it_says_why_a_request_waits)
{
    struct timed w;
    struct timed_job jobs[12], large = {.n_prompt = 150, .limit = 40, .priority = 0};
    begin(&w, &(struct timed_shape){.scheduler = SCHEDULER_PRIORITY, .n_blocks = 24});
    timed_send(&w, &large);
    EXPECT_WHY(&w, &large, "is the next by the rules of scheduler priority");
    timed_step(&w);
    EXPECT_WHY(&w, &large, "64 of 150 tokens are computed");
    timed_step(&w);
    timed_step(&w);
    EXPECT_WHY(&w, &large, "1 tokens of at most 40 are generated");
    for (uint32_t i = 0; i < 12; i++) {
        jobs[i] = (struct timed_job){.n_prompt = 30, .limit = 30};
        timed_send(&w, &jobs[i]);
    }
    EXPECT_WHY(&w, &jobs[11], "11 requests with 330 tokens to compute come before it");
    for (int i = 0; i < 8; i++)
        timed_step(&w);
    EXPECT_WHY(&w, &jobs[11], "less than safety_margin");
    char small[10];
    engine_request_why(w.engine, jobs[0].r, small, sizeof small);
    cr_expect_eq(strlen(small), 9, "cut, with its 0");
    engine_cancel(w.engine, jobs[11].r);
    EXPECT_WHY(&w, &jobs[11], "its end is decided");
    timed_finish_all(&w);
    end(&w);
}
