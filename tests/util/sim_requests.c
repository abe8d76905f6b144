/* The arena is cut into regions, one for each request or family on its way, and a region is
 * scribbled over as soon as that was answered: had the daemon not copied everything, results would
 * differ. */
#include <string.h>

#include "shm/message.h"
#include "tests/util/sim_client_parts.h"

static uint32_t draw_ids(struct sim_client *c, uint32_t *ids, uint32_t n_max)
{
    uint32_t n = draw(c, n_max + 1), n_vocab = c->welcome.geometry.n_vocab;
    for (uint32_t i = 0; i < n; i++) /* ascending */
        ids[i] = i * (n_vocab / n_max) + draw(c, n_vocab / n_max);
    return n;
}

/* What a half asks of the choice of its tokens, and the log-probabilities that a half asks for. */
static void draw_wishes(struct sim_client *c, struct sim_request *r)
{
    cb_sampling_init(&r->sampling);
    if (draw(c, 2)) {
        r->sampling.min_p = (float)draw(c, 3) / 4;
        r->sampling.typical_p = 1 - (float)draw(c, 3) / 4;
        r->sampling.presence_penalty = (float)draw(c, 3) - 1;
        r->sampling.no_repeat_ngram = draw(c, 4);
        r->sampling.min_new_tokens = draw(c, 6);
        if (draw(c, 4) == 0)
            r->sampling.first_id = draw(c, c->welcome.geometry.n_vocab);
        r->n_allowed = draw_ids(c, r->allowed, 3);
        r->n_banned = draw_ids(c, r->banned, 2);
        r->n_biases = draw(c, 3);
        for (uint32_t i = 0; i < r->n_biases; i++)
            r->biases[i] = (struct cb_logit_bias){10 * i + draw(c, 10), (float)draw(c, 9) - 4};
    }
    /* Rather the list than nothing to choose from. */
    for (uint32_t i = 0; i < r->n_banned; i++)
        for (uint32_t k = 0; k < r->n_allowed; k++)
            if (r->banned[i] == r->allowed[k])
                r->n_banned = 0;
    if (c->welcome.features & CB_FEATURE_LOGPROBS && draw(c, 2)) {
        if (draw(c, 2))
            r->planes |= CB_PLANE_LOGPROBS | (draw(c, 2) ? CB_PLANE_TOPK | SIM_TOP << 16 : 0);
        if (draw(c, 2))
            r->planes |= CB_PLANE_PROMPT;
        if (draw(c, 2))
            r->flags |= CB_FLAG_RAW_LOGPROBS;
    }
}

/* Some go on where another daemon of the same weights left them, at a drawn place, also at their very
 * end. What they ask of weights and prompts elsewhere is not known here. */
static void draw_resume(struct sim_client *c, struct sim_request *r)
{
    struct sim_answer alone;
    uint32_t most;
    if (!(c->welcome.features & CB_FEATURE_RESUME) || draw(c, 3) || r->n_children > 1 ||
        r->child_idx == UINT32_MAX || c->welcome.weight_epoch != c->sim->epoch ||
        r->max_new_tokens == CB_NO_LIMIT || r->max_new_tokens == 0 || sim_is_too_big(c->sim, r))
        return;
    r->planes &= ~(CB_PLANE_EPOCHS | CB_PLANE_PROMPT);
    sim_expect(c->sim, r, NULL, 0, &alone);
    most = SIM_PROMPT_MAX - r->n_prompt;
    most = most < alone.n_tokens ? most : alone.n_tokens;
    r->n_given = draw(c, 4) ? draw(c, most + 1) : most;
    memcpy(r->prompt + r->n_prompt, alone.tokens, r->n_given * sizeof(uint32_t));
    r->n_held = r->n_given; /* it may be sent while a pause is acted on */
    c->sim->report->n_resumed += r->n_given > 0;
}

static void draw_request(struct sim_client *c, struct sim_request *r)
{
    uint32_t n_vocab = c->welcome.geometry.n_vocab;
    memset(r, 0, sizeof *r);
    r->user = ++c->last_user;
    r->n_children = 1;
    r->epoch = c->sim->epoch;
    if (c->welcome.features & CB_FEATURE_CHILDREN) {
        uint32_t n_slots = c->welcome.geometry.n_slots;
        if (draw(c, c->is_hasty ? 1 : 3) == 0)
            r->n_children += draw(c, n_slots < 4 || draw(c, 3) == 0 ? n_slots : 4);
        if (draw(c, 4) == 0)
            r->child_idx = draw(c, 2) ? draw(c, 5) : UINT32_MAX - r->n_children;
    }
    r->n_prompt = 1 + draw(c, draw(c, 2) ? 8 : SIM_PROMPT_MAX);
    /* Most begin alike, many to their end. */
    uint32_t n_alike = draw(c, 5) ? r->n_prompt - draw(c, draw(c, 2) ? r->n_prompt : 1) : 0;
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = i < n_alike ? 1 + i : draw(c, n_vocab);
    r->max_new_tokens = draw(c, draw(c, 4) ? 16 : SIM_CONTEXT - r->n_prompt);
    if (draw(c, 10) == 0)
        r->max_new_tokens = CB_NO_LIMIT;
    r->temperature = draw(c, 2) ? 0 : 0.7f;
    r->seed = draw(c, 1u << 30);
    r->deadline_ns = draw(c, 5) ? 0 : 1 + draw(c, draw(c, 2) ? 3000000 : 20000000);
    r->n_stop_ids = draw(c, 4) ? 0 : 1 + draw(c, 2);
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        r->stop_ids[i] = draw(c, n_vocab);
    if (draw(c, 4) == 0)
        r->stop[0] = (char)('a' + draw(c, 26));
    r->is_salted = draw(c, 8) == 0;
    r->flags = draw(c, 4) ? 0 : CB_FLAG_FINAL_ONLY;
    if (draw(c, 4) == 0)
        r->flags |= CB_FLAG_IGNORE_EOS;
    r->planes = draw(c, 3) ? 0 : CB_PLANE_TIMES;
    if (c->welcome.features & CB_FEATURE_EPOCHS) {
        if (draw(c, c->sim->n_operators ? 8 : 2))
            r->planes |= CB_PLANE_EPOCHS;
        r->flags |= draw(c, 4) << CB_FLAG_ON_WEIGHTS_SHIFT;
    }
    draw_wishes(c, r);
    draw_resume(c, r);
}

/* Spoils the entry, or what it points to, in one way; the status that it must get. */
static int spoil(struct sim_client *c, struct sim_request *r, struct cb_request_entry *e)
{
    switch (draw(c, 9)) {
    case 0:
        e->n_prompt = 0;
        return CB_EMPTY_PROMPT;
    case 1:
        r->prompt[draw(c, r->n_prompt)] = c->welcome.geometry.n_vocab + draw(c, 2);
        return CB_BAD_TOKEN;
    case 2:
        e->temperature = -1;
        return CB_BAD_TEMPERATURE;
    case 3:
        e->top_p = 1.5f;
        return CB_BAD_TOP_P;
    case 4:
        e->prompt_off = UINT64_MAX - 3;
        return CB_BAD_BOUNDS;
    case 5:
        if (draw(c, 4))
            e->reserved[draw(c, 3)] = 1;
        else
            e->reserved_half = 1;
        return CB_BAD_OPTION;
    case 6:
        e->max_new_tokens = c->welcome.geometry.n_context;
        return CB_TOO_LONG;
    case 7:
        e->child_idx = UINT32_MAX - draw(c, e->n_children);
        return CB_BAD_OPTION;
    default:
        e->planes |= 0x20;
        return CB_BAD_PLANES;
    }
}

/* The request's prompt and options in its part of the arena, and the entry that points there. */
static void put_request(struct sim_client *c, struct sim_request *r, struct cb_request_entry *e)
{
    uint64_t block[32];
    const struct cb_message_text stop = {.bytes = r->stop, .n = strlen(r->stop)};
    const struct cb_resume resume = {
        .fingerprint = {c->welcome.fingerprint[0], c->welcome.fingerprint[1]},
        .child_idx = r->child_idx};
    struct cb_message_options options = {.stop_ids = r->stop_ids,
                                         .n_stop_ids = r->n_stop_ids,
                                         .stops = &stop,
                                         .n_stops = r->stop[0] ? 1 : 0,
                                         .cache_salt = {"salt", r->is_salted ? 4 : 0},
                                         .sampling = &r->sampling,
                                         .biases = r->biases,
                                         .n_biases = r->n_biases,
                                         .allowed_ids = r->allowed,
                                         .n_allowed_ids = r->n_allowed,
                                         .banned_ids = r->banned,
                                         .n_banned_ids = r->n_banned,
                                         .resume = r->n_given ? &resume : NULL};
    size_t n = cb_message_options_bytes(&options);
    if (n > sizeof block) { /* no room for that, too: it begins here */
        options.resume = NULL;
        r->n_given = 0;
        n = cb_message_options_bytes(&options);
    }
    cb_message_init(e);
    e->priority = draw(c, 2) ? draw(c, 256) : draw(c, 3);
    e->n_children = r->n_children;
    e->child_idx = r->n_given ? 0 : r->child_idx;
    e->n_prompt = r->n_prompt + r->n_given;
    e->resume_from = r->n_given;
    e->prompt_off = (uint64_t)r->region * SIM_REGION_BYTES;
    e->max_new_tokens = r->max_new_tokens;
    e->temperature = r->temperature;
    e->seed = r->seed;
    e->deadline_ns = r->deadline_ns;
    e->flags = r->flags;
    e->planes = r->planes;
    e->user = r->user;
    if (n) {
        cb_message_options_build(&options, block);
        e->opt_off = e->prompt_off + SIM_PROMPT_BYTES;
        e->opt_len = (uint32_t)n;
        cb_lane_client_write_arena(c->lc, e->opt_off, block, n);
    }
    if (draw(c, 8) == 0 && !r->n_given)
        r->must_reject = spoil(c, r, e);
    cb_lane_client_write_arena(c->lc, (uint64_t)r->region * SIM_REGION_BYTES, r->prompt,
                               (r->n_prompt + r->n_given) * sizeof(uint32_t));
}

void sim_client_submit(struct sim_client *c)
{
    struct sim_request r;
    struct cb_request_entry e;
    uint32_t region = 0;
    while (region < SIM_REGIONS && c->regions >> region & 1)
        region++;
    if (region == SIM_REGIONS)
        return;
    draw_request(c, &r);
    if (!cb_lane_client_can_submit(c->lc, r.n_children))
        return;
    r.region = region;
    put_request(c, &r, &e);
    int result = cb_lane_client_submit(c->lc, &e);
    if (result < 0) {
        sim_fail(c->sim, "client %u: submit gave %d", c->idx, result);
        return;
    }
    c->regions |= 1ull << region;
    r.slot = e.slot;
    r.gen = e.gen;
    r.is_sent = true;
    for (uint32_t i = 0; i < r.n_children; i++) {
        c->requests[e.slot + i] = r;
        c->requests[e.slot + i].slot = e.slot + i;
        c->requests[e.slot + i].child_idx = r.child_idx + i;
    }
    c->n_left--;
    c->n_running += r.n_children;
    c->sim->report->n_requests += r.n_children;
    c->sim->report->n_families += r.n_children > 1;
    sim_client_ring(c, result);
}

/* Whether its slot is its own by now. */
static bool is_there(const struct sim_client *c, const struct sim_request *r)
{
    struct cb_slot_view view;
    cb_lane_client_slot(c->lc, r->slot, &view);
    return view.gen == r->gen;
}

uint32_t sim_client_emitted(const struct sim_client *c, const struct sim_request *r)
{
    return is_there(c, r) ? cb_lane_client_emitted(c->lc, r->slot) : r->n_given;
}

void sim_client_cancel(struct sim_client *c)
{
    uint32_t n_slots = c->welcome.geometry.n_slots, first = draw(c, n_slots);
    uint64_t user = 0;
    bool all = draw(c, 2);
    for (uint32_t i = 0; i < n_slots; i++) {
        struct sim_request *r = &c->requests[(first + i) % n_slots];
        if (!r->is_sent || (user && r->user != user))
            continue;
        if (!r->was_cancelled) /* looked at before each step: not a token more */
            r->n_at_cancel = sim_client_emitted(c, r);
        r->was_cancelled = true;
        sim_client_ring(c, cb_lane_client_cancel(c->lc, r->slot, r->gen));
        if (!all)
            return;
        user = r->user;
    }
}

void sim_client_note_epoch(struct sim_client *c, uint32_t epoch)
{
    if (c->state != SIM_LIVE || c->is_hostile)
        return;
    for (uint32_t i = 0; i < c->welcome.geometry.n_slots; i++) {
        struct sim_request *r = &c->requests[i];
        if (!r->is_sent)
            continue;
        r->n_at_epoch[epoch] = sim_client_emitted(c, r);
        if (r->n_given && !is_there(c, r)) /* if it is let in after all, then as one of these */
            r->epoch = epoch;
    }
}

void sim_client_toggle_pause(struct sim_client *c)
{
    if (!(c->welcome.features & CB_FEATURE_PAUSE))
        return;
    c->wants_pause = !c->wants_pause;
    c->is_held = false;
    c->sim->report->n_pauses += c->wants_pause;
    sim_client_ring(c, cb_lane_client_pause(c->lc, c->wants_pause));
}

/* Its arena bytes are ours again: whatever the daemon still needs of them is a bug. */
void sim_client_release(struct sim_client *c, struct sim_request *r)
{
    unsigned char garbage[SIM_REGION_BYTES];
    uint32_t region = r->region;
    if (region == SIM_REGIONS)
        return;
    memset(garbage, (int)(0x80 | draw(c, 128)), sizeof garbage);
    cb_lane_client_write_arena(c->lc, (uint64_t)region * SIM_REGION_BYTES, garbage, sizeof garbage);
    c->regions &= ~(1ull << region);
    for (uint32_t i = 0; i < c->welcome.geometry.n_slots; i++)
        if (c->requests[i].user == r->user)
            c->requests[i].region = SIM_REGIONS;
}
