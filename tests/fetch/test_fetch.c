/* No byte of an entry, a prompt or an option block is loaded twice in one pass of the daemon, and
 * what is made of it right after its first load changes nothing: shm, intake and all else of the
 * daemon run with a hook at each load (trace.h), over a real lane of the simulation. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"
#include "tests/fetch/trace.h"
#include "tests/fetch/traced/samples.h"

TestSuite(fetch, .timeout = 300);

enum { PROMPT_OFF = 256, OPTIONS_OFF = 1024, N_PROMPT = 12, BLOCK_MAX = 1024 };

/* ---- the trace itself ---------------------------------------------------------------------------- */

static void expect_seen(bool (*sample)(const struct sample_record *), const char *name)
{
    struct sample_record r = {{7, 7, 7, 7, 7, 7, 7, 7}}, after = {{500}};
    uint8_t n_loads[sizeof r];
    struct trace t = {.base = (unsigned char *)&r,
                      .mirror = (unsigned char *)&r,
                      .bytes = sizeof r,
                      .n_loads = n_loads};
    trace_begin(&t);
    (void)sample(&r);
    trace_end();
    cr_expect_eq(n_loads[0], 2, "%s: %u loads seen", name, n_loads[0]);
    t.after = (unsigned char *)&after;
    trace_begin(&t);
    bool got_two = sample(&r);
    trace_end();
    cr_expect(got_two, "%s: the second load got the first value", name);
}

Test(fetch, a_doubled_load_of_any_kind_is_seen)
{
    expect_seen(sample_plain, "plain");
    expect_seen(sample_atomic, "atomic");
    expect_seen(sample_memcpy, "memcpy");
    expect_seen(sample_struct, "struct");
    expect_seen(sample_check_then_use, "check, then use");
    struct sample_record r = {{1, 2, 3, 4, 5, 6, 7, 8}};
    uint8_t n_loads[sizeof r];
    struct trace t = {.base = (unsigned char *)&r, .bytes = sizeof r, .n_loads = n_loads};
    trace_begin(&t);
    (void)sample_once(&r);
    trace_end();
    for (size_t i = 0; i < sizeof r; i++)
        cr_expect_eq(n_loads[i], 1);
}

/* ---- requests of every kind ------------------------------------------------------------------------ */

static struct sim_report report;

/* A request before it is sent. */
struct ask {
    struct cb_request_entry e;
    uint32_t ids[N_PROMPT];
    struct cb_message_options options;
    unsigned char spoil_at, spoil_with; /* of the block; 0: nothing */
    bool is_cancelled;                  /* before it is sent */
};

struct kind {
    const char *name;
    void (*make)(struct ask *a, const struct peer *p);
    uint32_t type; /* of its last result */
};

static void plain(struct ask *a, const struct peer *p)
{
    (void)a;
    (void)p;
}

static void all_planes(struct ask *a, const struct peer *p)
{
    (void)p;
    a->e.planes = CB_PLANE_LOGPROBS | CB_PLANE_TOPK | CB_PLANE_PROMPT | 2u << 16;
    a->e.temperature = 0.8f;
    a->e.seed = 77;
}

static void family(struct ask *a, const struct peer *p)
{
    (void)p;
    a->e.n_children = 3;
    a->e.temperature = 1;
}

/* Every list. */
static void all_options(struct ask *a, const struct peer *p)
{
    static const uint32_t stops[] = {500, 501}, allowed[] = {10, 20, 30, 40, 50},
                          banned[] = {7, 30};
    static const struct cb_message_text strings[] = {{"none such", 9}, {"\xc3\xa4h", 3}};
    static const struct cb_logit_bias biases[] = {{10, 1.5f}, {40, -2.0f}};
    static struct cb_sampling sampling;
    (void)p;
    cb_sampling_init(&sampling);
    sampling.min_p = 0.01f;
    sampling.repetition_penalty = 1.1f;
    sampling.min_new_tokens = 2;
    a->options = (struct cb_message_options){.stop_ids = stops,
                                             .n_stop_ids = 2,
                                             .stops = strings,
                                             .n_stops = 2,
                                             .cache_salt = {"salt", 4},
                                             .sampling = &sampling,
                                             .biases = biases,
                                             .n_biases = 2,
                                             .allowed_ids = allowed,
                                             .n_allowed_ids = 5,
                                             .banned_ids = banned,
                                             .n_banned_ids = 2};
}

static void resumed(struct ask *a, const struct peer *p)
{
    static struct cb_resume resume;
    memset(&resume, 0, sizeof resume);
    memcpy(resume.fingerprint, p->welcome.fingerprint, sizeof resume.fingerprint);
    a->options.resume = &resume;
    a->e.resume_from = 4;
    a->e.max_new_tokens = 8;
}

static void bad_op(struct ask *a, const struct peer *p)
{
    (void)p;
    a->e.op = 99;
}

static void bad_id(struct ask *a, const struct peer *p)
{
    a->ids[N_PROMPT - 1] = p->welcome.geometry.n_vocab;
}

static void bad_bounds(struct ask *a, const struct peer *p)
{
    a->e.prompt_off = p->welcome.geometry.up_arena_bytes - 4;
}

static void bad_option(struct ask *a, const struct peer *p)
{
    all_options(a, p);
    a->spoil_at = 4; /* how long the first is */
    a->spoil_with = 0xf8;
}

static void bad_fingerprint(struct ask *a, const struct peer *p)
{
    resumed(a, p);
    a->spoil_at = 8;
    a->spoil_with = (unsigned char)~p->welcome.fingerprint[0];
}

static void cancelled(struct ask *a, const struct peer *p)
{
    (void)p;
    a->is_cancelled = true;
}

static const struct kind kinds[] = {
    {"plain", plain, CB_RESULT_FINISHED},
    {"all planes", all_planes, CB_RESULT_FINISHED},
    {"a family", family, CB_RESULT_FINISHED},
    {"all options", all_options, CB_RESULT_FINISHED},
    {"resumed", resumed, CB_RESULT_FINISHED},
    {"unknown op", bad_op, CB_RESULT_REJECTED},
    {"an id that is none", bad_id, CB_RESULT_REJECTED},
    {"out of the arena", bad_bounds, CB_RESULT_REJECTED},
    {"a broken option block", bad_option, CB_RESULT_REJECTED},
    {"another's fingerprint", bad_fingerprint, CB_RESULT_REJECTED},
    {"cancelled before it is seen", cancelled, CB_RESULT_CANCELLED},
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* ---- a lane that is watched ---------------------------------------------------------------------- */

struct watched {
    struct sim *sim;
    struct peer p;
    struct trace trace;
    unsigned char *up;     /* from the ring on: what requests are made of */
    size_t arena, n_bytes; /* where that begins, and what ends it; offsets are from the ring */
};

static void watched_open(struct watched *w)
{
    struct cb_hello hello = peer_hello();
    struct client *cl = NULL;
    hello.features = CB_FEATURES;
    memset(w, 0, sizeof *w);
    w->sim = sim_new(2, false, &report);
    cr_assert(w->sim);
    peer_open(&w->p, w->sim, 1000, &hello);
    const struct clients *c = w->sim->daemon->clients;
    for (uint32_t i = 0; i < c->n_clients; i++)
        if (c->table[i].lane)
            cl = &c->table[i];
    cr_assert(cl);
    const struct cb_geometry *g = &w->p.welcome.geometry;
    w->up = (unsigned char *)w->p.up.base + g->up_ring_off;
    w->arena = g->up_arena_off - g->up_ring_off;
    w->n_bytes = w->arena + g->up_arena_bytes;
    w->trace = (struct trace){.base = (unsigned char *)cl->memory.up.base + g->up_ring_off,
                              .mirror = w->up,
                              .bytes = w->n_bytes,
                              .n_loads = malloc(w->n_bytes)};
    cr_assert(w->trace.n_loads);
}

static void watched_close(struct watched *w)
{
    peer_close(&w->p);
    sim_free(w->sim);
    free(w->trace.n_loads);
}

/* One pass of the daemon; no byte that requests are made of may be loaded twice in it. Where bytes
 * change, the outcome alone must tell. */
static void pass(struct watched *w, const char *name)
{
    trace_clear();
    daemon_turn(w->sim->daemon);
    for (size_t i = 0; i < w->n_bytes && !w->trace.after; i++)
        cr_assert_leq(w->trace.n_loads[i], 1, "%s: byte %zu of %s is loaded %u times", name,
                      i < w->arena ? i : i - w->arena, i < w->arena ? "the ring" : "the arena",
                      w->trace.n_loads[i]);
}

static void ask_make(const struct kind *k, const struct watched *w, uint32_t variant, struct ask *a)
{
    memset(a, 0, sizeof *a);
    cb_message_init(&a->e);
    a->e.n_prompt = N_PROMPT;
    a->e.prompt_off = PROMPT_OFF;
    a->e.max_new_tokens = 4 + variant;
    a->e.flags = CB_FLAG_IGNORE_EOS;
    a->e.opt_off = OPTIONS_OFF;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        a->ids[i] = 3 + variant * 17 + i;
    k->make(a, &w->p);
}

/* Writes prompt and block into an arena's bytes. */
static void ask_write(struct ask *a, unsigned char *arena)
{
    a->e.opt_len = (uint32_t)cb_message_options_bytes(&a->options);
    cr_assert_leq(a->e.opt_len, BLOCK_MAX);
    memcpy(arena + PROMPT_OFF, a->ids, sizeof a->ids);
    if (a->e.opt_len)
        cb_message_options_build(&a->options, arena + OPTIONS_OFF);
    if (a->spoil_at)
        arena[OPTIONS_OFF + a->spoil_at] = a->spoil_with;
}

/* All that the client is told of a request. */
struct outcome {
    uint32_t type, n_results, a, b, status;
    uint32_t n[4], ids[4][16]; /* of each child */
};

/* Sends it and waits for its end. */
static void ask_run(struct watched *w, const struct kind *k, struct ask *a, struct outcome *o)
{
    struct cb_result_entry e;
    uint32_t n_ends = 0;
    ask_write(a, w->up + w->arena);
    memset(o, 0, sizeof *o);
    cr_assert_geq(cb_lane_client_submit(w->p.lc, &a->e), 0);
    if (a->is_cancelled)
        (void)cb_lane_client_cancel(w->p.lc, a->e.slot, a->e.gen);
    for (int i = 0; i < 300 && n_ends < a->e.n_children; i++) {
        (void)cb_doorbell_send(w->p.sock, CB_RECORD_BELL);
        pass(w, k->name);
        while (cb_lane_client_poll(w->p.lc, &e) & CB_LANE_ENTRY) {
            struct cb_slot_view view;
            if (e.type == CB_RESULT_ACCEPTED || e.type == CB_RESULT_TOKENS)
                continue;
            cr_assert_lt(n_ends, 4);
            o->type = e.type;
            o->a = e.first;
            o->b = e.last;
            o->status = e.count;
            cb_lane_client_slot(w->p.lc, e.slot, &view);
            if (e.type == CB_RESULT_FINISHED) {
                cr_assert_leq(view.emitted, 16);
                o->n[n_ends] = view.emitted;
                memcpy(o->ids[n_ends], view.ids, view.emitted * sizeof *view.ids);
            }
            n_ends++;
            cb_lane_client_free(w->p.lc, e.slot);
        }
    }
    o->n_results = n_ends;
    cr_assert_geq(n_ends, 1, "%s: no end", k->name);
}

static size_t entry_at(const struct watched *w, uint64_t sent)
{
    const struct cb_geometry *g = &w->p.welcome.geometry;
    return (size_t)(sent % g->req_capacity) * g->req_stride;
}

static uint64_t sent_of(const struct watched *w)
{
    const struct cb_up_hot *hot = w->p.up.base;
    return cb_load64(&hot->req_sent, CB_RELAXED);
}

/* ---- tests ------------------------------------------------------------------------------------------- */

Test(fetch, each_byte_once_a_pass)
{
    for (uint32_t i = 0; i < N_KINDS; i++) {
        struct watched w;
        struct ask a;
        struct outcome o;
        watched_open(&w);
        ask_make(&kinds[i], &w, 0, &a);
        uint64_t sent = sent_of(&w);
        uint8_t *sum = calloc(1, w.n_bytes);
        ask_write(&a, w.up + w.arena);
        cr_assert_geq(cb_lane_client_submit(w.p.lc, &a.e), 0);
        if (a.is_cancelled)
            (void)cb_lane_client_cancel(w.p.lc, a.e.slot, a.e.gen);
        trace_begin(&w.trace);
        for (int n = 0; n < 40; n++) {
            (void)cb_doorbell_send(w.p.sock, CB_RECORD_BELL);
            pass(&w, kinds[i].name);
            for (size_t k = 0; k < w.n_bytes; k++)
                sum[k] = (uint8_t)(sum[k] + w.trace.n_loads[k]);
        }
        trace_end();
        /* What is answered was loaded: all of it, and once. */
        for (size_t k = 0; k < sizeof a.e; k++)
            cr_assert_eq(sum[entry_at(&w, sent) + k], 1, "%s: byte %zu of the entry: %u loads",
                         kinds[i].name, k, sum[entry_at(&w, sent) + k]);
        bool is_taken = kinds[i].type == CB_RESULT_FINISHED;
        for (size_t k = 0; k < sizeof a.ids; k++)
            cr_assert(sum[w.arena + PROMPT_OFF + k] == 1 || !is_taken,
                      "%s: byte %zu of the prompt: %u loads", kinds[i].name, k,
                      sum[w.arena + PROMPT_OFF + k]);
        for (size_t k = 0; k < a.e.opt_len; k++)
            cr_assert(sum[w.arena + OPTIONS_OFF + k] == 1 || !is_taken,
                      "%s: byte %zu of the options: %u loads", kinds[i].name, k,
                      sum[w.arena + OPTIONS_OFF + k]);
        free(sum);
        watched_close(&w);
        watched_open(&w);
        ask_make(&kinds[i], &w, 0, &a);
        trace_begin(&w.trace);
        ask_run(&w, &kinds[i], &a, &o);
        trace_end();
        cr_assert_eq(o.type, kinds[i].type, "%s: a result of type %u, status %d", kinds[i].name,
                     o.type, (int)o.status);
        watched_close(&w);
    }
}

/* What waits in the ring, for credit, for a run or for room, is copied anew in each pass, once. */
Test(fetch, what_waits_is_loaded_once_a_pass)
{
    char message[SETTINGS_MESSAGE_MAX];
    struct cb_result_entry e;
    struct watched w;
    struct ask a;
    uint32_t n_ends = 0, n_waits = 0;
    watched_open(&w);
    cr_assert_eq(
        settings_set(&w.sim->settings, "uid_requests", "2", SETTINGS_OPERATOR, NULL, message), 0,
        "%s", message);
    trace_begin(&w.trace);
    for (uint32_t i = 0; i < 4; i++) {
        ask_make(&kinds[0], &w, i, &a);
        a.e.prompt_off = 4096 + i * sizeof a.ids;
        memcpy(w.up + w.arena + a.e.prompt_off, a.ids, sizeof a.ids);
        cr_assert_geq(cb_lane_client_submit(w.p.lc, &a.e), 0);
    }
    for (int n = 0; n < 200 && n_ends < 4; n++) {
        (void)cb_doorbell_send(w.p.sock, CB_RECORD_BELL);
        pass(&w, "waiting");
        n_waits += w.trace.n_loads[entry_at(&w, sent_of(&w) - 1)];
        while (cb_lane_client_poll(w.p.lc, &e) & CB_LANE_ENTRY)
            n_ends += e.type == CB_RESULT_FINISHED;
    }
    trace_end();
    cr_assert_eq(n_ends, 4);
    cr_assert_geq(n_waits, 1);
    watched_close(&w);
}

/* What each byte of UP becomes right after its load. */
enum way { AS_IT_IS, INVERTED, ZEROED, ALL_ONES, RANDOM, ANOTHER_REQUEST, N_WAYS };

/* UP as it will be when `a` is sent, made into what the hostile writer wants of it. */
static void image_make(const struct watched *w, const struct kind *k, const struct ask *a,
                       enum way way, unsigned char *image)
{
    struct cb_request_entry e = a->e;
    uint64_t random = 5;
    struct ask other;
    memcpy(image, w->up, w->n_bytes);
    e.gen = 1; /* slot 0's first */
    memcpy(image + entry_at(w, sent_of(w)), &e, sizeof e);
    for (size_t i = 0; i < w->n_bytes && way != AS_IT_IS && way != ANOTHER_REQUEST; i++)
        image[i] = (unsigned char)(way == INVERTED   ? image[i] ^ 0xffu
                                   : way == ZEROED   ? 0u
                                   : way == ALL_ONES ? 0xffu
                                                     : sim_draw(&random, 256));
    if (way == ANOTHER_REQUEST) { /* all of it good, but not what was checked */
        ask_make(k, w, 3, &other);
        ask_write(&other, image + w->arena);
        other.e.slot = 1;
        other.e.gen = 9;
        other.e.temperature = 2;
        memcpy(image + entry_at(w, sent_of(w)), &other.e, sizeof other.e);
    }
}

static void expect_equal(const struct outcome *got, const struct outcome *want, const char *name,
                         int way, size_t at)
{
    cr_assert(memcmp(got, want, sizeof *got) == 0,
              "%s, way %d, byte %zu: ends by %u with status %d, not by %u with %d", name, (int)way,
              at, got->type, (int)got->status, want->type, (int)want->status);
}

Test(fetch, what_is_changed_after_its_load_changes_nothing)
{
    for (uint32_t i = 0; i < N_KINDS; i++) {
        struct outcome want, got;
        for (uint32_t way = AS_IT_IS; way < N_WAYS; way++) {
            struct watched w;
            struct ask a;
            watched_open(&w);
            unsigned char *image = malloc(w.n_bytes);
            cr_assert(image);
            ask_make(&kinds[i], &w, 0, &a);
            ask_write(&a, w.up + w.arena);
            image_make(&w, &kinds[i], &a, way, image);
            w.trace.after = image;
            trace_begin(&w.trace);
            ask_run(&w, &kinds[i], &a, way == AS_IT_IS ? &want : &got);
            trace_end();
            if (way != AS_IT_IS)
                expect_equal(&got, &want, kinds[i].name, way, 0);
            free(image);
            watched_close(&w);
        }
    }
}

/* One byte alone, each in turn: nothing else that is changed may hide it. */
Test(fetch, each_byte_alone)
{
    const struct kind *k = &kinds[3];
    struct outcome want, got;
    size_t n_entry = sizeof(struct cb_request_entry), n_ids = N_PROMPT * sizeof(uint32_t),
           n_block = 0;
    for (size_t at = 0; at <= n_entry + n_ids + n_block; at++) { /* the first as it is */
        struct watched w;
        struct ask a;
        watched_open(&w);
        ask_make(k, &w, 0, &a);
        ask_write(&a, w.up + w.arena);
        n_block = a.e.opt_len;
        unsigned char *image = malloc(w.n_bytes);
        cr_assert(image);
        image_make(&w, k, &a, AS_IT_IS, image);
        if (at > 0) {
            size_t i = at - 1;
            i = i < n_entry           ? entry_at(&w, sent_of(&w)) + i
                : i < n_entry + n_ids ? w.arena + PROMPT_OFF + i - n_entry
                                      : w.arena + OPTIONS_OFF + i - n_entry - n_ids;
            image[i] ^= 0xff;
        }
        w.trace.after = image;
        trace_begin(&w.trace);
        ask_run(&w, k, &a, at ? &got : &want);
        trace_end();
        if (at > 0)
            expect_equal(&got, &want, k->name, AS_IT_IS, at - 1);
        free(image);
        watched_close(&w);
    }
}
