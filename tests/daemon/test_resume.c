/* Requests that go on from what another lane saw of them, over a real lane: cut at every token they
 * are the same request, and each rule of the option is kept. */
#include <criterion/criterion.h>
#include <string.h>

#include "daemon/model/vocabulary.h"
#include "shm/message.h"
#include "shm/utf8.h"
#include "shm/vocab.h"
#include "tests/daemon/peer.h"

enum { N_PROMPT = 4, N_NEW = 12 };

static struct sim_report report;
static const uint32_t prompt[N_PROMPT] = {1, 2, 3, 4};

struct lane {
    struct sim *sim;
    struct peer p;
};

static void lane_open(struct lane *l)
{
    struct cb_hello hello = peer_hello();
    hello.features = CB_FEATURES;
    l->sim = sim_new(1, false, &report);
    cr_assert(l->sim);
    peer_open(&l->p, l->sim, 1000, &hello);
}

static void lane_close(struct lane *l)
{
    peer_close(&l->p);
    sim_free(l->sim);
}

/* What is asked, beside the prompt. */
struct wish {
    float temperature;
    uint32_t child_idx, max_new_tokens, planes;
    struct cb_message_options options;
};

/* What came of it. */
struct answer {
    uint32_t type, n, ids[N_NEW], first; /* first: of what the lane announced */
    struct cb_slot_view view;
    struct cb_result_entry last;
};

static struct cb_request_entry entry_of(const struct wish *w)
{
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = N_PROMPT;
    e.max_new_tokens = w->max_new_tokens;
    e.temperature = w->temperature;
    e.planes = w->planes;
    e.seed = 77;
    e.flags = CB_FLAG_IGNORE_EOS;
    return e;
}

/* Sends it with these options and ids, and reads until its end. */
static void ask(struct lane *l, struct cb_request_entry *e,
                const struct cb_message_options *options, const uint32_t *given, struct answer *a)
{
    uint32_t ids[N_PROMPT + N_NEW];
    uint64_t block[128];
    struct cb_result_entry result;
    memcpy(ids, prompt, sizeof prompt);
    for (uint32_t i = 0; i < e->resume_from; i++) /* given may be NULL where there are none */
        ids[N_PROMPT + i] = given[i];
    e->opt_off = 4096;
    e->opt_len = (uint32_t)cb_message_options_bytes(options);
    cr_assert_leq(e->opt_len, sizeof block);
    cb_message_options_build(options, block);
    if (e->opt_len)
        cb_lane_client_write_arena(l->p.lc, e->opt_off, block, e->opt_len);
    peer_submit(&l->p, e, ids, N_PROMPT + e->resume_from);
    memset(a, 0, sizeof *a);
    a->first = UINT32_MAX;
    do {
        cr_assert(peer_result(&l->p, &result), "no end");
        if (result.type == CB_RESULT_TOKENS || result.type >= CB_RESULT_FINISHED)
            a->first = result.first < a->first ? result.first : a->first;
    } while (result.type == CB_RESULT_ACCEPTED || result.type == CB_RESULT_TOKENS);
    a->last = result;
    a->type = result.type;
    cb_lane_client_slot(l->p.lc, result.slot, &a->view);
    if (result.type != CB_RESULT_REJECTED) {
        a->n = a->view.emitted;
        cr_assert_leq(a->n, N_NEW);
        memcpy(a->ids, a->view.ids, a->n * sizeof *a->ids);
    }
    cb_lane_client_free(l->p.lc, result.slot);
}

/* Runs it whole, and then, in daemons of their own, from each of its tokens on. */
static void expect_the_same(const struct wish *w)
{
    struct lane l;
    struct answer whole, rest;
    struct cb_request_entry e = entry_of(w);
    lane_open(&l);
    e.child_idx = w->child_idx;
    ask(&l, &e, &w->options, NULL, &whole);
    cr_assert_eq(whole.type, CB_RESULT_FINISHED);
    cr_assert_gt(whole.n, 3);
    lane_close(&l);
    for (uint32_t k = 0; k <= whole.n; k++) {
        struct cb_message_options options = w->options;
        struct cb_resume resume = {.child_idx = w->child_idx};
        lane_open(&l);
        memcpy(resume.fingerprint, l.p.welcome.fingerprint, sizeof resume.fingerprint);
        options.resume = &resume;
        e = entry_of(w);
        e.resume_from = k;
        e.n_prompt = N_PROMPT + k;
        ask(&l, &e, &options, whole.ids, &rest);
        cr_assert_eq(rest.type, CB_RESULT_FINISHED, "from %u: %u", k, rest.type);
        cr_assert(rest.n == whole.n && memcmp(rest.ids, whole.ids, whole.n * 4) == 0, "from %u", k);
        cr_assert_eq(rest.first, k, "from %u: announced from %u", k, rest.first);
        cr_assert(
            rest.view.finish == whole.view.finish && rest.view.stop_idx == whole.view.stop_idx &&
                rest.view.text_bytes == whole.view.text_bytes && rest.view.n_prompt == N_PROMPT,
            "from %u: ends otherwise", k);
        cr_assert_eq(rest.view.first_token_ns != 0, k < whole.n, "from %u", k);
        lane_close(&l);
    }
}

Test(resume, a_greedy_request_cut_anywhere_is_the_same)
{
    expect_the_same(&(struct wish){.max_new_tokens = N_NEW});
}

Test(resume, a_sampled_one_draws_by_its_place_and_its_number_among_siblings)
{
    static const struct cb_sampling sampling = {.typical_p = 1,
                                                .repetition_penalty = 1.5f,
                                                .frequency_penalty = 0.5f,
                                                .no_repeat_ngram = 3,
                                                .min_new_tokens = 5,
                                                .first_id = CB_NO_ID};
    expect_the_same(&(struct wish){.temperature = 1, .max_new_tokens = N_NEW});
    expect_the_same(&(struct wish){.temperature = 1, .max_new_tokens = N_NEW, .child_idx = 3});
    expect_the_same(&(struct wish){
        .temperature = 1, .max_new_tokens = N_NEW, .options = {.sampling = &sampling}});
}

Test(resume, stops_are_found_where_they_were)
{
    struct lane l;
    struct answer a;
    struct wish w = {.max_new_tokens = N_NEW};
    struct cb_request_entry e = entry_of(&w);
    char text[64] = "";
    size_t n = 0;
    lane_open(&l);
    ask(&l, &e, &w.options, NULL, &a);
    const struct cb_vocab *vocab = vocab_image_view(model_vocab(l.sim->model));
    /* From the middle of one token into the one after the next. */
    for (uint32_t i = 4; i < 7; i++) {
        uint32_t n_token;
        const uint8_t *bytes = cb_vocab_text(vocab, a.ids[i], &n_token);
        uint32_t skip = i == 4 && n_token > 1;
        cr_assert_lt(n + n_token, sizeof text);
        memcpy(text + n, bytes + skip, n_token - skip);
        n += n_token - skip;
    }
    const struct cb_message_text stop = {text, n};
    w.options = (struct cb_message_options){.stop_ids = &a.ids[5], .n_stop_ids = 1};
    expect_the_same(&w);
    w.options = (struct cb_message_options){.stops = &stop, .n_stops = 1};
    cr_assert(n > 0 && cb_utf8_valid((const uint8_t *)text, n) == n);
    expect_the_same(&w);
    lane_close(&l);
}

Test(resume, what_was_asked_in_planes_begins_where_it_goes_on)
{
    struct wish w = {.max_new_tokens = N_NEW,
                     .planes = CB_PLANE_TIMES | CB_PLANE_LOGPROBS | CB_PLANE_EPOCHS |
                               CB_PLANE_PROMPT | CB_PLANE_TOPK | 2u << 16};
    struct lane l;
    struct answer whole, rest;
    struct cb_request_entry e = entry_of(&w);
    float logprobs[N_NEW], of_prompt[N_PROMPT];
    struct cb_top top[N_NEW * 2];
    lane_open(&l);
    ask(&l, &e, &w.options, NULL, &whole);
    memcpy(logprobs, whole.view.logprobs, sizeof logprobs);
    memcpy(of_prompt, whole.view.prompt_logprobs, sizeof of_prompt);
    memcpy(top, whole.view.top, sizeof top);
    struct cb_resume resume = {.child_idx = 0};
    memcpy(resume.fingerprint, l.p.welcome.fingerprint, sizeof resume.fingerprint);
    w.options.resume = &resume;
    e = entry_of(&w);
    e.resume_from = 5;
    e.n_prompt = N_PROMPT + 5;
    ask(&l, &e, &w.options, whole.ids, &rest);
    cr_assert_eq(rest.type, CB_RESULT_FINISHED);
    for (uint32_t i = 5; i < N_NEW; i++) {
        cr_assert_eq(rest.view.logprobs[i], logprobs[i], "%u", i);
        cr_assert_eq(memcmp(&rest.view.top[2 * i], &top[2 * i], 2 * sizeof *top), 0, "%u", i);
        cr_assert(rest.view.epochs[i] == 0 || i == 5, "%u", i);
    }
    cr_assert_eq(memcmp(rest.view.prompt_logprobs + 1, of_prompt + 1, 3 * sizeof *of_prompt), 0);
    lane_close(&l);
}

/* Which rule is broken. */
enum rule {
    KEPT,
    NO_OPTION,
    NO_PROMPT,
    OVER_LIMIT,
    TWO_CHILDREN,
    CHILD_TWICE,
    CHILD_TOO_HIGH,
    RESERVED,
    OTHER_FINGERPRINT,
    OTHER_FINGERPRINT_NO_IDS,
    STOP_INSIDE,
    STRING_INSIDE,
    BAD_ID,
    N_RULES
};

Test(resume, each_rule_has_its_status)
{
    static const int statuses[N_RULES] = {0,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_BAD_OPTION,
                                          CB_CHANGED,
                                          CB_CHANGED,
                                          CB_CHANGED,
                                          CB_CHANGED,
                                          CB_BAD_TOKEN};
    const struct wish w = {.max_new_tokens = N_NEW};
    struct lane l;
    struct answer whole, a;
    struct cb_request_entry e = entry_of(&w);
    const char *why;
    lane_open(&l);
    ask(&l, &e, &w.options, NULL, &whole);
    const struct cb_vocab *vocab = vocab_image_view(model_vocab(l.sim->model));
    uint32_t n_text;
    for (enum rule rule = KEPT; rule < N_RULES; rule++) {
        struct cb_resume resume = {.child_idx = 0};
        struct cb_message_options options = {.resume = &resume};
        uint32_t given[N_NEW];
        memcpy(given, whole.ids, sizeof given);
        memcpy(resume.fingerprint, l.p.welcome.fingerprint, sizeof resume.fingerprint);
        e = entry_of(&w);
        e.resume_from = 6;
        e.n_prompt = N_PROMPT + 6;
        const uint8_t *text = NULL;
        uint32_t i = 0;
        do
            text = cb_vocab_text(vocab, given[i], &n_text);
        while ((n_text == 0 || cb_utf8_valid(text, n_text) < n_text) && ++i < 5);
        cr_assert_lt(i, 5, "no token before the last has text");
        const struct cb_message_text stop = {text, n_text};
        switch (rule) {
        case NO_OPTION:
            options.resume = NULL;
            break;
        case NO_PROMPT:
            e.resume_from = e.n_prompt;
            break;
        case OVER_LIMIT:
            e.max_new_tokens = 5;
            break;
        case TWO_CHILDREN:
            e.n_children = 2;
            break;
        case CHILD_TWICE:
            e.child_idx = 1;
            break;
        case CHILD_TOO_HIGH:
            resume.child_idx = UINT32_MAX;
            break;
        case RESERVED:
            resume.reserved = 1;
            break;
        case OTHER_FINGERPRINT:
            resume.fingerprint[1]++;
            break;
        case OTHER_FINGERPRINT_NO_IDS:
            resume.fingerprint[0]--;
            e.resume_from = 0;
            e.n_prompt = N_PROMPT;
            break;
        case STOP_INSIDE:
            options.stop_ids = &given[4];
            options.n_stop_ids = 1;
            break;
        case STRING_INSIDE:
            options.stops = &stop;
            options.n_stops = 1;
            break;
        case BAD_ID:
            given[2] = l.p.welcome.geometry.n_vocab;
            break;
        default:
            break;
        }
        ask(&l, &e, &options, given, &a);
        if (rule == KEPT) {
            cr_assert_eq(a.type, CB_RESULT_FINISHED);
            continue;
        }
        if (rule == TWO_CHILDREN) { /* each is answered */
            struct cb_result_entry other;
            cr_assert(peer_result(&l.p, &other) && other.type == CB_RESULT_REJECTED);
            cb_lane_client_free(l.p.lc, other.slot);
        }
        cr_assert_eq(a.type, CB_RESULT_REJECTED, "rule %d", rule);
        cr_assert_eq((int)a.last.count, statuses[rule], "rule %d: %d, %u, %u", rule,
                     (int)a.last.count, a.last.first, a.last.last);
        cr_assert_eq(daemon_check(l.sim->daemon, &why), 0, "rule %d: %s", rule, why);
    }
    lane_close(&l);
}

Test(resume, without_the_feature_it_is_an_option_nobody_knows)
{
    const struct wish w = {.max_new_tokens = N_NEW};
    struct cb_resume resume = {.child_idx = 0};
    const struct cb_message_options options = {.resume = &resume};
    struct cb_hello hello = peer_hello();
    struct cb_request_entry e = entry_of(&w);
    struct answer a;
    struct lane l = {.sim = sim_new(1, false, &report)};
    hello.features = CB_FEATURES & ~CB_FEATURE_RESUME;
    peer_open(&l.p, l.sim, 1000, &hello);
    memcpy(resume.fingerprint, l.p.welcome.fingerprint, sizeof resume.fingerprint);
    ask(&l, &e, &options, NULL, &a);
    cr_assert(a.type == CB_RESULT_REJECTED && (int)a.last.count == CB_BAD_OPTION);
    e = entry_of(&w);
    e.resume_from = 1;
    e.n_prompt = N_PROMPT + 1;
    ask(&l, &e, &w.options, prompt, &a);
    cr_assert(a.type == CB_RESULT_REJECTED && (int)a.last.count == CB_BAD_OPTION);
    lane_close(&l);
}
