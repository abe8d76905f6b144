#include "tests/system/stream.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPT = 40 };

/* What one of its children has told so far. */
struct told {
    uint64_t id;
    uint32_t n, ids[STREAM_TOKENS];
    bool is_over;
    struct cb_event last;
    size_t n_text;
    char text[STREAM_TEXT];
};

struct run {
    struct crowd *c;
    uint32_t n, n_over;
    struct told told[STREAM_CHILDREN];
};

/* Everything that is asked for; the stop of kinds 5 and 6 is known from kind 0's answer. */
static uint32_t request_of(const struct streams *st, uint32_t kind, struct cb_request *r,
                           uint32_t prompt[N_PROMPT], struct cb_string *stop)
{
    cb_request_init(r);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 11 * i + 3 * (kind == 5 || kind == 6 ? 0 : kind);
    r->ids = prompt;
    r->n_ids = N_PROMPT;
    r->max_new_tokens = STREAM_TOKENS;
    r->flags = CB_IGNORE_EOS | CB_HAS_SEED | CB_RESUMABLE;
    r->seed = 1000 + kind;
    switch (kind) {
    case 1:
        r->temperature = 0.8f;
        break;
    case 2:
        r->temperature = 1;
        r->top_k = 50;
        r->repetition_penalty = 1.3f;
        r->frequency_penalty = 0.5f;
        r->no_repeat_ngram = 3;
        r->min_new_tokens = 20;
        break;
    case 3:
        r->temperature = 1;
        r->n = STREAM_CHILDREN;
        r->child_idx = 2;
        break;
    case 4:
        r->flags |= CB_LOGPROBS | CB_PROMPT_LOGPROBS | CB_TIMES | CB_EPOCHS;
        r->top_logprobs = 2;
        break;
    case 5:
        r->stop_ids = &st->answers[0][0].ids[STREAM_TOKENS - 30];
        r->n_stop_ids = 1;
        break;
    case 6:
        *stop = (struct cb_string){st->answers[0][0].text + st->answers[0][0].n_text / 2, 6};
        r->stops = stop;
        r->n_stops = 1;
        break;
    case 7:
        r->flags |= CB_FINAL_ONLY;
        break;
    default:
        break;
    }
    return r->n;
}

/* ---- events ---------------------------------------------------------------------------------- */

static void take(struct run *run, struct cb_handle *h, const struct cb_event *e)
{
    struct crowd *c = run->c;
    const char *text;
    size_t bytes;
    struct told *t = run->told;
    while (t < run->told + run->n && t->id != e->id)
        t++;
    member_expect(c, t < run->told + run->n && !t->is_over, "an event of nobody's");
    member_expect(c, e->type != CB_EVENT_REJECTED && e->type != CB_EVENT_RESTARTED,
                  "type %u, status %d", e->type, e->status);
    member_expect(c, e->first == t->n && e->n_ids <= STREAM_TOKENS - t->n,
                  "%u behind %u, %zu of them", e->first, t->n, e->n_ids);
    for (size_t i = 0; i < e->n_ids; i++)
        t->ids[t->n++] = e->ids[i];
    while (cb_text(h, e->id, &text, &bytes) > 0) {
        member_expect(c, bytes <= sizeof t->text - t->n_text, "too much text");
        memcpy(t->text + t->n_text, text, bytes);
        t->n_text += bytes;
    }
    if (e->type == CB_EVENT_END) {
        t->is_over = true;
        t->last = *e;
        run->n_over++;
    }
    crowd_move(c);
}

static void on_event(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    take(arg, h, e);
}

static int loop_turn(struct cb_handle *h, struct cb_event *e)
{
    struct pollfd p = {cb_fd(h), POLLIN, 0};
    int r = cb_poll(h, e);
    if (r)
        return r;
    r = cb_arm(h);
    if (r)
        return cb_poll(h, e);
    r = cb_poll(h, e);
    if (r == 0)
        poll(&p, 1, 5000);
    return r;
}

static void step(struct run *run, struct cb_handle *h, enum stream_way way)
{
    struct cb_event e;
    int r = 0;
    switch (way) {
    case STREAM_WAIT:
        r = cb_wait(h, 0, &e, 5000);
        r = r == CB_TIMEOUT ? 0 : r;
        break;
    case STREAM_POLL:
        r = cb_poll(h, &e);
        if (r == 0)
            nap();
        break;
    case STREAM_DISPATCH:
        r = cb_dispatch(h, 5000);
        member_expect(run->c, r >= 0, "dispatch: %d", r);
        return;
    default:
        r = loop_turn(h, &e);
        break;
    }
    member_expect(run->c, r >= 0, "%d: %s", r, cb_message());
    if (r > 0)
        take(run, h, &e);
}

void stream_options(struct cb_options *options, enum stream_way way)
{
    cb_options_init(options);
    options->kind = way == STREAM_LOOP ? CB_KIND_EVENT_LOOP : CB_KIND_LATENCY;
    options->resume = 1;
    options->resume_max = 1u << 30;
    options->reconnect_ms = 120000;
}

/* ---- one ------------------------------------------------------------------------------------- */

static void look(struct cb_handle *h, const struct told *t, struct stream_answer *a)
{
    const struct cb_top_logprob *top;
    const uint64_t *times;
    const float *logprobs;
    struct cb_result result;
    size_t n = 0;
    memset(a, 0, sizeof *a);
    cb_result(h, t->id, &result);
    a->n = t->n;
    memcpy(a->ids, t->ids, sizeof a->ids);
    a->end = t->last.end;
    a->stop_idx = result.stop_idx;
    a->stop_is_id = result.stop_is_id;
    a->text_bytes = result.text_bytes;
    a->n_text = t->n_text;
    memcpy(a->text, t->text, t->n_text);
    if (cb_logprobs(h, t->id, &logprobs, &top, &n) == 0 && logprobs && top)
        for (size_t i = 0; i < n && i < STREAM_TOKENS; i++) {
            a->logprobs[i] = logprobs[i];
            a->best[i] = top[2 * i].id;
        }
    if (cb_prompt_logprobs(h, t->id, &logprobs, &top, &n) == 0 && n > 0)
        a->of_prompt = logprobs[n - 1];
    if (cb_times(h, t->id, &times, &n) == 0)
        for (size_t i = 1; i < n; i++)
            if (times[i] < times[i - 1])
                a->of_prompt = -1; /* as no log-probability of these is */
}

static void run(struct crowd *c, const struct streams *st, struct cb_handle *h, uint32_t kind,
                enum stream_way way, uint64_t hang_ms, struct stream_answer *answers)
{
    static struct run run;
    uint32_t prompt[N_PROMPT];
    struct cb_string stop;
    struct cb_request r;
    uint64_t id, until = now_ms() + hang_ms;
    int status;
    run = (struct run){.c = c};
    run.n = request_of(st, kind, &r, prompt, &stop);
    if (way == STREAM_DISPATCH) {
        r.handler = on_event;
        r.handler_arg = &run;
    }
    while ((status = cb_submit(h, &r, &id)) == CB_BUSY && now_ms() < until)
        nap();
    member_expect(c, status == 0, "submit: %s", cb_message());
    for (uint32_t i = 0; i < run.n; i++)
        run.told[i].id = id + i;
    while (run.n_over < run.n) {
        member_expect(c, now_ms() < until, "kind %u, way %d: no end; %u tokens", kind, way,
                      run.told[0].n);
        step(&run, h, way);
    }
    for (uint32_t i = 0; i < run.n; i++) {
        member_expect(c, run.told[i].last.end != CB_END_ERROR,
                      "kind %u, child %u: status %d after %u", kind, i, run.told[i].last.status,
                      run.told[i].n);
        look(h, &run.told[i], &answers[i]);
        cb_release(h, id + i);
    }
}

void stream_run(struct crowd *c, const struct streams *st, struct cb_handle *h, uint32_t kind,
                enum stream_way way, uint64_t hang_ms)
{
    static struct stream_answer got[STREAM_CHILDREN];
    uint32_t n = kind == 3 ? STREAM_CHILDREN : 1;
    run(c, st, h, kind, way, hang_ms, got);
    for (uint32_t i = 0; i < n; i++) {
        const struct stream_answer *a = &st->answers[kind][i], *b = &got[i];
        member_expect(c, a->n == b->n && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0,
                      "kind %u, child %u: %u tokens, not %u, or others", kind, i, b->n, a->n);
        member_expect(c,
                      a->end == b->end && a->stop_idx == b->stop_idx &&
                          a->stop_is_id == b->stop_is_id && a->text_bytes == b->text_bytes,
                      "kind %u, child %u: ends with %u, not %u", kind, i, b->end, a->end);
        member_expect(c, a->n_text == b->n_text && memcmp(a->text, b->text, a->n_text) == 0,
                      "kind %u, child %u: another text", kind, i);
        member_expect(c,
                      memcmp(a->logprobs, b->logprobs, sizeof a->logprobs) == 0 &&
                          memcmp(a->best, b->best, sizeof a->best) == 0 &&
                          a->of_prompt == b->of_prompt,
                      "kind %u, child %u: other log-probabilities", kind, i);
    }
}

void streams_learn(struct streams *st, struct cb_handle *h)
{
    static struct crowd_shared shared;
    struct crowd c = {.shared = &shared};
    memset(st, 0, sizeof *st);
    for (uint32_t kind = 0; kind < STREAM_KINDS; kind++) {
        run(&c, st, h, kind, STREAM_WAIT, HANG_MS, st->answers[kind]);
        for (uint32_t i = 0; i < (kind == 3 ? STREAM_CHILDREN : 1); i++)
            cr_assert(st->answers[kind][i].n > 10);
    }
    cr_assert_eq(st->answers[5][0].end, CB_END_STOP);
    cr_assert_eq(st->answers[6][0].end, CB_END_STOP);
}
