/* One request at a time: its events, its results, and every way to be refused. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/client/pair.h"

/* ---- one request ----------------------------------------------------------------------------- */

Test(request, brings_each_token_once_and_one_end)
{
    struct pair p = start_plain();
    uint64_t id = submit(p.h, 3, 100, CB_TIMES);
    struct cb_event e = take_all(p.h, id, 3);
    struct cb_result r;
    const uint32_t *ids;
    const uint64_t *ns;
    size_t n;
    cr_assert(e.type == CB_EVENT_END && e.end == CB_END_LENGTH && e.status == 0 && e.n_ids == 0);
    cr_assert_eq(cb_tokens(p.h, id, &ids, &n), 0);
    cr_assert(n == 100 && ids[0] == 3 && ids[99] == 102);
    cr_assert_eq(cb_times(p.h, id, &ns, &n), 0);
    cr_assert(n == 100 && ns[0] == 1000 && ns[99] == 1099);
    cr_assert_eq(cb_result(p.h, id, &r), 0);
    cr_assert(r.id == id && r.end == CB_END_LENGTH && r.n_prompt == 1 && r.n_generated == 100);
    cr_assert(r.queued_ns == 1 && r.first_token_ns == 2 && r.total_ns == 3);
    cr_assert_eq(cb_release(p.h, id), 0);
    cr_assert_eq(cb_release(p.h, id), CB_NOT_FOUND);
    cr_assert_eq(cb_tokens(p.h, id, &ids, &n), CB_NOT_FOUND);
    cr_assert_eq(cb_result(p.h, id, &r), CB_NOT_FOUND);
    cr_assert_eq(cb_cancel(p.h, id), CB_NOT_FOUND);
    stop(p);
}

Test(request, final_only_brings_all_tokens_with_the_end)
{
    struct pair p = start_plain();
    uint64_t id = submit(p.h, 3, 50, CB_FINAL_ONLY);
    struct cb_event e;
    cr_assert_eq(cb_wait(p.h, id, &e, HANG_MS), 1);
    cr_assert(e.type == CB_EVENT_END && e.first == 0 && e.n_ids == 50 && e.ids[49] == 52);
    stop(p);
}

Test(request, polls_find_the_same)
{
    struct pair p = start_plain();
    uint32_t n = 0;
    struct cb_event e;
    submit(p.h, 3, 100, 0);
    for (;;) {
        int r = cb_poll(p.h, &e);
        cr_assert(r >= 0);
        if (r == 0)
            continue;
        for (size_t i = 0; i < e.n_ids; i++, n++)
            cr_assert_eq(e.ids[i], 3 + n);
        if (e.type == CB_EVENT_END)
            break;
    }
    cr_assert_eq(n, 100);
    cr_assert_eq(cb_poll(p.h, &e), 0);
    stop(p);
}

Test(request, seeds_are_drawn_unless_given)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 1);
    struct cb_result a, b, c;
    uint64_t ids[3];
    cr_assert_eq(cb_submit(p.h, &r, &ids[0]), 0);
    cr_assert_eq(cb_submit(p.h, &r, &ids[1]), 0);
    r.flags = CB_HAS_SEED;
    r.seed = 99;
    cr_assert_eq(cb_submit(p.h, &r, &ids[2]), 0);
    for (int i = 0; i < 3; i++)
        take_all(p.h, ids[i], 5);
    cb_result(p.h, ids[0], &a);
    cb_result(p.h, ids[1], &b);
    cb_result(p.h, ids[2], &c);
    cr_assert(a.seed != b.seed && c.seed == 99);
    stop(p);
}

Test(request, drawn_seeds_survive_json)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 1);
    for (int i = 0; i < 20; i++) {
        struct cb_result result;
        uint64_t id;
        cr_assert_eq(cb_submit(p.h, &r, &id), 0);
        take_all(p.h, id, 5);
        cr_assert_eq(cb_result(p.h, id, &result), 0);
        cr_assert_lt(result.seed, 1ull << 53);
        cb_release(p.h, id);
    }
    stop(p);
}

Test(request, stops_say_which)
{
    struct pair p = start_plain();
    uint32_t stop_ids[] = {9, 8};
    struct cb_request r = request_of(ids3, 3, 100);
    struct cb_result result;
    struct cb_event e;
    uint64_t id;
    r.stop_ids = stop_ids;
    r.n_stop_ids = 2;
    r.user = 77;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.end == CB_END_STOP && e.user == 77);
    cb_result(p.h, id, &result);
    cr_assert(result.stop_is_id && result.stop_idx == 1 && result.n_generated == 4);
    stop(p);
}

Test(request, ids_are_never_used_again)
{
    struct pair p = start(&(struct fake_config){.n_slots = 1}, 0, 0);
    uint64_t before = 0;
    for (int i = 0; i < 200; i++) {
        uint64_t id = submit(p.h, 1, 1, 0);
        cr_assert_neq(id, before);
        take_all(p.h, id, 1);
        cr_assert_eq(cb_cancel(p.h, id), 0); /* of what has ended: no effect on the next one */
        cb_release(p.h, id);
        cr_assert_eq(cb_cancel(p.h, id), CB_NOT_FOUND);
        before = id;
    }
    stop(p);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static int refusal(struct cb_handle *h, const struct cb_request *r)
{
    uint64_t id = 1;
    int status = cb_submit(h, r, &id);
    cr_assert_eq(id, 0);
    return status;
}

Test(refusal, bad_requests_are_refused_at_once_in_words)
{
    struct pair p = start_plain();
    struct cb_request good = request_of(ids3, 3, 10), r;
    uint32_t bad[] = {1, FAKE_VOCAB}, many[65] = {0};
    struct cb_string stops[17];
    char long_stop[257];

    r = good, r.n_ids = 0;
    cr_assert_eq(refusal(p.h, &r), CB_EMPTY_PROMPT);
    r = good, r.ids = NULL;
    cr_assert_eq(refusal(p.h, &r), CB_EMPTY_PROMPT);
    r = good, r.ids = bad, r.n_ids = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOKEN);
    expect_message("token id 600 is outside the vocabulary of 600");
    r = good, r.max_new_tokens = FAKE_CONTEXT - 2;
    cr_assert_eq(refusal(p.h, &r), CB_TOO_LONG);
    expect_message("prompt and limit make 4097 tokens, the context is 4096");
    r = good, r.temperature = -1;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r.temperature = NAN;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r.temperature = INFINITY;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TEMPERATURE);
    r = good, r.top_p = 0;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r.top_p = 1.5f;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r.top_p = NAN;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_P);
    r = good, r.top_k = -1;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOP_K);
    r = good, r.stop_ids = many, r.n_stop_ids = 65;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    expect_message("a stop list has 65 where 64 are allowed");
    r = good, r.stop_ids = bad, r.n_stop_ids = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_TOKEN);
    for (int i = 0; i < 17; i++)
        stops[i] = (struct cb_string){"x", 1};
    r = good, r.stops = stops, r.n_stops = 17;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    stops[1].n = 0;
    r.n_stops = 2;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    memset(long_stop, 'a', sizeof(long_stop));
    stops[1] = (struct cb_string){long_stop, sizeof(long_stop)};
    cr_assert_eq(refusal(p.h, &r), CB_BAD_STOP);
    stops[1] = (struct cb_string){"a\xff", 2};
    cr_assert_eq(refusal(p.h, &r), CB_BAD_UTF8);
    expect_message("at byte 1");
    r = good, r.cache_salt = "";
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    expect_message("cache_salt");
    char salt[66] = {0};
    memset(salt, 's', 65);
    r.cache_salt = salt;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.priority = 256;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.flags = 0x8000;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.flags = CB_AUTO_RELEASE;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.size = 16;
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.text = "both";
    cr_assert_eq(refusal(p.h, &r), CB_INVALID);
    r = good, r.ids = NULL, r.text = "a\xc3";
    cr_assert_eq(refusal(p.h, &r), CB_BAD_UTF8);
    expect_message("at byte 1");
    r.text = "ab\0c", r.text_bytes = 4;
    cr_assert_eq(refusal(p.h, &r), CB_BAD_NUL);
    expect_message("at byte 2");
    r = good, r.ids = NULL;
    r.messages = &(struct cb_chat_message){"user", "hi", 0}, r.n_messages = 1;
    cr_assert_eq(refusal(p.h, &r), CB_NO_TEMPLATE);

    take_all(p.h, submit(p.h, 5, 10, 0), 5); /* the handle is as good as before */
    stop(p);
}

Test(refusal, prompt_and_limit_may_fill_the_context_exactly)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, FAKE_CONTEXT - 3);
    uint64_t id;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0, "%s", cb_message());
    r.max_new_tokens = CB_NO_LIMIT;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0, "%s", cb_message());
    stop(p);
}

Test(refusal, what_only_the_daemon_knows_comes_as_an_event)
{
    struct pair p = start_plain();
    struct cb_request r = request_of(ids3, 3, 10);
    struct cb_result result;
    struct cb_event e;
    char words[200];
    uint64_t id;
    r.user = 666;
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    e = take_all(p.h, id, 5);
    cr_assert(e.type == CB_EVENT_REJECTED && e.status == CB_NO_CAPACITY);
    cr_assert_str_eq(cb_explain(e.status, e.detail, words, sizeof(words)),
                     "11 cache blocks are needed, there are 9 in all; lower the limit");
    cr_assert_eq(cb_result(p.h, id, &result), 0);
    cr_assert(result.status == CB_NO_CAPACITY && result.end == CB_END_NONE && !result.n_generated);
    cr_assert_eq(cb_release(p.h, id), 0);
    take_all(p.h, submit(p.h, 5, 10, 0), 5);
    stop(p);
}

Test(refusal, a_full_handle_says_busy_at_once)
{
    struct pair p = start(&(struct fake_config){.n_slots = 4}, 0, 0);
    struct cb_request r = request_of(ids3, 3, 10);
    uint64_t ids[4], id;
    fake_hold(p.f, true);
    for (int i = 0; i < 4; i++)
        ids[i] = submit(p.h, 5, 10, 0);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_BUSY);
    expect_message("no free slot");
    fake_hold(p.f, false);
    take_all(p.h, ids[2], 5);
    cr_assert_eq(cb_submit(p.h, &r, &id), CB_BUSY); /* not before it is released */
    cb_release(p.h, ids[2]);
    cr_assert_eq(cb_submit(p.h, &r, &id), 0);
    stop(p);
}

Test(refusal, a_full_arena_says_busy_and_recovers)
{
    struct pair p = start(&(struct fake_config){.arena_bytes = 1}, 0, 0);
    uint32_t *prompt = calloc(4000, sizeof(*prompt));
    struct cb_request r = request_of(prompt, 4000, 10);
    uint64_t ids[64];
    int n = 0, status;
    fake_deaf(p.f, true);
    while (n < 64 && !(status = cb_submit(p.h, &r, &ids[n])))
        n++;
    cr_assert(n > 0 && n < 64 && status == CB_BUSY);
    fake_deaf(p.f, false);
    for (int i = 0; i < n; i++)
        take_all(p.h, ids[i], 0);
    cr_assert_eq(cb_submit(p.h, &r, &ids[n]), 0, "%s", cb_message());
    free(prompt);
    stop(p);
}

Test(refusal, many_at_once_go_in_order_as_far_as_they_go)
{
    struct pair p = start(&(struct fake_config){.n_slots = 5}, 0, 0);
    struct cb_request r[8];
    uint64_t ids[8];
    for (int i = 0; i < 8; i++) {
        r[i] = request_of(&ids3[0], 1, 10);
        r[i].user = (uint64_t)i;
    }
    cr_assert_eq(cb_submit_many(p.h, r, 8, ids), 5);
    expect_message("no free slot");
    cr_assert(ids[4] && !ids[5] && !ids[7]);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(take_all(p.h, ids[i], 5).user, (uint64_t)i);
    cr_assert_eq(cb_submit_many(p.h, r, 8, ids), CB_BUSY);
    cr_assert_eq(cb_submit_many(p.h, r, 0, ids), 0);
    stop(p);
}
