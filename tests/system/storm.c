#include "tests/system/storm.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

uint32_t draw(uint64_t *random, uint32_t n)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return n ? (uint32_t)((z >> 33) % n) : 0;
}

void storm_init(struct storm *st, const struct storm_scale *scale)
{
    st->scale = *scale;
    st->answers = mmap(NULL, scale->n_distinct * sizeof *st->answers, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(st->answers != MAP_FAILED);
    cr_assert(scale->prompt_max <= STORM_PROMPT_MAX && scale->new_max <= STORM_NEW_MAX);
}

void storm_fini(struct storm *st)
{
    munmap(st->answers, st->scale.n_distinct * sizeof *st->answers);
}

void storm_request(const struct storm *st, uint32_t i, struct storm_request *r)
{
    const struct storm_scale *sc = &st->scale;
    uint64_t random = sc->seed + i * UINT64_C(1000003);
    bool is_long = i % 8 == 7;
    cb_request_init(&r->request);
    r->request.n_ids = 1 + draw(&random, is_long ? sc->prompt_max : sc->prompt_usual);
    for (size_t k = 0; k < r->request.n_ids; k++)
        r->prompt[k] = draw(&random, sc->n_vocab);
    r->request.ids = r->prompt;
    r->request.max_new_tokens = 1 + draw(&random, is_long ? sc->new_max : sc->new_usual);
    if (i % 2) {
        r->request.temperature = 0.5f + 0.1f * (float)draw(&random, 10);
        r->request.flags |= CB_HAS_SEED;
        r->request.seed = (uint64_t)draw(&random, 1u << 30) << 20;
        r->request.top_k = draw(&random, 2) ? (int32_t)(1 + draw(&random, 100)) : 0;
        r->request.top_p = draw(&random, 2) ? 0.9f : 1.0f;
    }
    if (draw(&random, 2))
        r->request.flags |= CB_IGNORE_EOS;
    if (draw(&random, 4) == 0)
        r->request.flags |= CB_FINAL_ONLY;
    if (draw(&random, 4) == 0)
        r->request.flags |= CB_TIMES;
    if (draw(&random, 4) == 0) {
        for (int k = 0; k < 3; k++)
            r->stop_ids[k] = draw(&random, sc->n_vocab);
        r->request.stop_ids = r->stop_ids;
        r->request.n_stop_ids = 3;
    }
    if (draw(&random, 3) == 0) {
        r->stops[0] = (struct cb_string){"e", 1};
        r->stops[1] = (struct cb_string){" th", 3};
        r->request.stops = r->stops + draw(&random, 2);
        r->request.n_stops = 1;
    }
}

static uint64_t text_hash(const char *text, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* What the library says of an ended request. False: it does not say. */
static bool answer_take(struct cb_handle *h, uint64_t id, struct storm_answer *a)
{
    struct cb_result result;
    const uint32_t *ids;
    const char *text;
    size_t n, n_text;
    if (cb_result(h, id, &result) || cb_tokens(h, id, &ids, &n) ||
        cb_text_all(h, id, &text, &n_text) || n > STORM_NEW_MAX)
        return false;
    memset(a, 0, sizeof *a);
    a->n = (uint32_t)n;
    a->end = result.end;
    a->stop_idx = result.stop_idx;
    a->stop_is_id = result.stop_is_id;
    a->text_bytes = result.text_bytes;
    a->n_text = (uint32_t)n_text;
    a->text_hash = text_hash(text, n_text);
    if (n) /* of a request without a token ids is NULL */
        memcpy(a->ids, ids, n * sizeof *ids);
    return true;
}

void storm_answer_all(struct storm *st, const struct system *s)
{
    struct cb_handle *h = system_open(s, NULL);
    uint32_t n_stopped = 0, n_length = 0;
    for (uint32_t i = 0; i < st->scale.n_distinct; i++) {
        struct storm_request r;
        struct cb_event event = {0};
        uint64_t id;
        storm_request(st, i, &r);
        cr_assert_eq(cb_submit(h, &r.request, &id), 0, "%s", cb_message());
        do
            cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "request %u: %s", i, cb_message());
        while (event.type == CB_EVENT_TOKENS);
        cr_assert_eq(event.type, CB_EVENT_END, "request %u was refused: %s", i,
                     cb_strerror(event.status));
        cr_assert(answer_take(h, id, &st->answers[i]));
        cr_assert_lt(event.end, CB_END_CANCELLED, "request %u ended with %u", i, event.end);
        cr_assert_gt(st->answers[i].n, 0);
        n_stopped += event.end == CB_END_STOP;
        n_length += event.end == CB_END_LENGTH;
        cb_release(h, id);
    }
    cb_close(h);
    cr_assert(n_stopped > 0 && n_length > 0, "a storm of one kind only shows nothing");
}

void storm_check(struct crowd *c, const struct storm *st, struct cb_handle *h, uint64_t id,
                 uint32_t i, uint32_t end)
{
    const struct storm_answer *right = &st->answers[i];
    struct storm_answer a;
    if (!answer_take(h, id, &a))
        crowd_fail(c, "request %u: no result: %s", i, cb_message());
    member_expect(c, end == a.end, "the event says %u, the result %u", end, a.end);
    if (end == CB_END_CANCELLED) {
        member_expect(c, a.n <= right->n && memcmp(a.ids, right->ids, a.n * sizeof *a.ids) == 0,
                      "request %u, cancelled after %u of %u", i, a.n, right->n);
        return;
    }
    for (uint32_t k = 0; k < a.n && k < right->n; k++)
        member_expect(c, a.ids[k] == right->ids[k], "request %u, token %u is %u, alone %u", i, k,
                      a.ids[k], right->ids[k]);
    member_expect(c, a.n == right->n, "request %u has %u tokens, alone %u", i, a.n, right->n);
    member_expect(c, memcmp(&a, right, sizeof a) == 0,
                  "request %u ends with %u at stop %u, text of %u; alone %u, %u, %u", i, a.end,
                  a.stop_idx, a.n_text, right->end, right->stop_idx, right->n_text);
}

/* ---- a client of a storm --------------------------------------------------------------------- */

/* A request under way: which, and after how many of its tokens it is cancelled. */
struct flight {
    uint64_t id; /* 0: none */
    uint32_t which, cancel_at, n_seen;
    uint64_t last_ns; /* when it got tokens last */
};

static void send_one(struct crowd *c, const struct storm *st, struct cb_handle *h, struct flight *f,
                     uint32_t number)
{
    struct storm_request r;
    storm_request(st, f->which, &r);
    r.request.user = number;
    if (cb_submit(h, &r.request, &f->id))
        crowd_fail(c, "request %u: %s", f->which, cb_message());
    f->n_seen = 0;
    f->last_ns = 0;
    if (f->cancel_at == 0)
        cb_cancel(h, f->id);
}

static int next_event(struct cb_handle *h, uint32_t kind, struct cb_event *event)
{
    uint64_t end = now_ms() + HANG_MS;
    int r;
    if (kind == CB_KIND_LATENCY)
        return cb_wait(h, 0, event, HANG_MS);
    while ((r = cb_poll(h, event)) == 0 && now_ms() < end) {
        struct pollfd p = {cb_fd(h), POLLIN, 0};
        r = cb_arm(h);
        if (r < 0 || (r = cb_poll(h, event)) != 0)
            return r;
        poll(&p, 1, HANG_MS);
    }
    return r ? r : CB_TIMEOUT;
}

/* Takes one event; true when it was a request's last. */
static bool take_one(struct crowd *c, const struct storm_member *m, struct cb_handle *h,
                     struct flight *flights)
{
    const struct storm *st = m->storm;
    struct cb_event event;
    int r = next_event(h, m->kind, &event);
    if (r != 1)
        crowd_fail(c, "no event: %d, %s", r, cb_message());
    crowd_move(c);
    struct flight *f = &flights[event.user];
    member_expect(c, event.id == f->id, "an event of another request");
    if (event.type == CB_EVENT_REJECTED)
        crowd_fail(c, "request %u was refused: %s", f->which, cb_strerror(event.status));
    const uint32_t *right = st->answers[f->which].ids;
    member_expect(c, event.first == f->n_seen, "tokens from %u, %u were seen", event.first,
                  f->n_seen);
    member_expect(c, event.first + event.n_ids <= st->answers[f->which].n, "too many tokens");
    for (size_t k = 0; k < event.n_ids; k++)
        member_expect(c, event.ids[k] == right[event.first + k],
                      "request %u, streamed token %zu is %u", f->which, event.first + k,
                      event.ids[k]);
    f->n_seen += (uint32_t)event.n_ids;
    if (m->pace && event.n_ids)
        pace_note(m->pace, event.n_ids, &f->last_ns);
    if (event.type == CB_EVENT_TOKENS) {
        if (f->n_seen >= f->cancel_at)
            cb_cancel(h, f->id);
        return false;
    }
    member_expect(c, event.end != CB_END_CANCELLED || f->cancel_at != UINT32_MAX,
                  "request %u was never cancelled", f->which);
    storm_check(c, st, h, event.id, f->which, event.end);
    cb_release(h, event.id);
    f->id = 0;
    return true;
}

void storm_member_run(struct crowd *c, uint32_t i, void *member)
{
    const struct storm_member *m = member;
    const struct storm *st = m->storm;
    uint64_t random = st->scale.seed * 31 + i;
    struct cb_options options;
    cb_options_init(&options);
    options.kind = m->kind;
    options.named = m->named;
    options.n_slots = STORM_EACH;
    for (uint32_t round = 0; round < m->n_rounds; round++) {
        struct flight flights[STORM_EACH] = {0};
        struct cb_handle *h = crowd_open(c, &options);
        uint32_t n_sent = 0, n_over = 0;
        for (uint32_t k = 0; k < STORM_EACH; k++) {
            flights[k].which = ((i + round) * STORM_EACH + k) % st->scale.n_distinct;
            flights[k].cancel_at =
                m->cancels && draw(&random, 4) == 0 ? draw(&random, 6) : UINT32_MAX;
        }
        while (n_over < STORM_EACH) {
            uint32_t n_now = draw(&random, 4);
            for (; n_sent < STORM_EACH && n_now > 0; n_now--, n_sent++)
                send_one(c, st, h, &flights[n_sent], n_sent);
            if (n_over < n_sent)
                n_over += take_one(c, m, h, flights);
        }
        cb_close(h);
    }
}

uint64_t storm_rage(const struct storm *st, const char *const *settings)
{
    struct storm_member member = {.storm = st, .n_rounds = 1, .cancels = true};
    struct storm_member looper = {
        .storm = st, .n_rounds = 1, .cancels = true, .kind = CB_KIND_EVENT_LOOP};
    struct system s;
    struct crowd c;
    system_init(&s);
    system_start(&s, settings);
    crowd_init(&c, &s);
    for (uint32_t i = 0; i < STORM_CLIENTS; i++)
        crowd_add(&c, storm_member_run, i % 4 == 3 ? &looper : &member);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(&s);
    cr_expect_eq(system_counter(&s, "wake_missed"), 0);
    cr_expect_eq(system_counter(&s, "lane_broken"), 0);
    cr_expect_eq(system_counter(&s, "requests_failed"), 0);
    uint64_t n_resets = system_counter(&s, "soft_resets");
    system_fini(&s);
    return n_resets;
}
