/* The arena is cut into regions, one a request, and a region is scribbled over as soon as its
 * request was answered: had the daemon not copied everything, results would differ. */
#include "tests/util/sim_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/util/sim.h"

#define LATE_NS      100000000ull /* after a deadline: the daemon slept over it */
#define REGIONS      (2 * SIM_SLOTS_MAX)
#define PROMPT_BYTES (SIM_PROMPT_MAX * 4)
#define REGION_BYTES (PROMPT_BYTES + 256)

static uint32_t draw(struct sim_client *c, uint32_t n)
{
    return sim_draw(&c->random, n);
}

void sim_client_init(struct sim_client *c, struct sim *sim, uint32_t idx, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->sim = sim;
    c->idx = idx;
    c->random = seed;
    c->sock = c->death = -1;
    c->uid = 1000 + draw(c, 2);
    c->wake = draw(c, 2);
    c->n_left = 1 + draw(c, 12);
    c->is_hostile = draw(c, 6) == 0;
}

static void drop_memory(struct sim_client *c)
{
    cb_segment_unmap(&c->up);
    cb_segment_unmap(&c->down);
    free(c->lc);
    c->lc = NULL;
}

void sim_client_fini(struct sim_client *c)
{
    drop_memory(c);
    if (c->sock >= 0)
        close(c->sock);
    if (c->death >= 0)
        close(c->death);
    c->sock = c->death = -1;
    c->state = SIM_OVER;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static void greet(struct sim_client *c)
{
    struct cb_hello hello = {
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_HELLO},
        .format_min = 1,
        .format_max = 1 + draw(c, 3),
        .features = draw(c, 4) | (draw(c, 4) ? CB_FEATURES : 0),
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .n_slots = 1 + draw(c, SIM_SLOTS_MAX),
        .wake = c->wake,
        .arena_bytes = REGIONS * REGION_BYTES,
        .pool_bytes = draw(c, 2) ? 0 : 4096,
    };
    size_t n = sizeof hello;
    sim_connect(c->sim, c->uid, &c->sock, &c->death);
    c->state = SIM_GREETED;
    switch (draw(c, 20)) {
    case 0: /* says nothing, for ever */
        c->state = SIM_MUTE;
        return;
    case 1:
        hello.format_min = 7;
        hello.format_max = 9;
        c->was_refused = true;
        break;
    case 2:
        hello.reserved[draw(c, sizeof hello.reserved)] = 1;
        c->was_refused = true;
        break;
    case 3:
        n = draw(c, 2) ? 255 : 8;
        c->was_refused = true;
        break;
    case 4:
        hello.n_slots = 5000;
        c->was_refused = true;
        break;
    default:
        break;
    }
    (void)send(c->sock, &hello, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void welcomed(struct sim_client *c)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = &c->welcome, .iov_len = sizeof c->welcome};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fds[4] = {-1, -1, -1, -1};
    struct cb_why why;
    ssize_t n = recvmsg(c->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0 || c->welcome.head.type != CB_RECORD_WELCOME) {
        if (n > 0 && c->welcome.head.type != CB_RECORD_REFUSED)
            sim_fail(c->sim, "client %u: the answer to HELLO is of type %u", c->idx,
                     c->welcome.head.type);
        sim_client_fini(c);
        return;
    }
    if (c->was_refused)
        sim_fail(c->sim, "client %u: a bad HELLO was welcomed", c->idx);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    if (cmsg)
        memcpy(fds, CMSG_DATA(cmsg), sizeof fds);
    const struct cb_geometry *g = &c->welcome.geometry;
    int r = cb_geometry_check(g);
    if (r == 0)
        r = cb_segment_map(&c->up, fds[0], g->up_bytes, 1, &why);
    if (r == 0)
        r = cb_segment_map(&c->down, fds[1], g->down_bytes, 0, &why);
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    void *memory = calloc(1, cb_lane_client_bytes(g));
    if (r == 0)
        r = cb_lane_client_init(&c->lc, memory, g, c->up.base, c->down.base);
    if (r) {
        sim_fail(c->sim, "client %u: WELCOME makes no sense (%d)", c->idx, r);
        free(memory);
        sim_client_fini(c);
        return;
    }
    if (draw(c, 12) == 0) { /* killed between WELCOME and READY, or silent from here on */
        if (draw(c, 2))
            sim_client_die(c);
        else
            c->state = SIM_MUTE;
        return;
    }
    (void)cb_doorbell_send(c->sock, CB_RECORD_READY);
    c->state = SIM_LIVE;
}

/* ---- requests -------------------------------------------------------------------------------- */

static void ring(struct sim_client *c, int result)
{
    if (result > 0 && result & CB_LANE_RING)
        (void)cb_doorbell_send(c->sock, CB_RECORD_BELL);
}

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

static void draw_request(struct sim_client *c, struct sim_request *r)
{
    uint32_t n_vocab = c->welcome.geometry.n_vocab;
    memset(r, 0, sizeof *r);
    r->user = ++c->last_user;
    r->n_prompt = 1 + draw(c, draw(c, 2) ? 8 : SIM_PROMPT_MAX);
    /* Most begin alike, many to their end. */
    uint32_t n_alike = draw(c, 5) ? r->n_prompt - draw(c, draw(c, 2) ? r->n_prompt : 1) : 0;
    for (uint32_t i = 0; i < r->n_prompt; i++)
        r->prompt[i] = i < n_alike ? 1 + i : draw(c, n_vocab);
    r->max_new_tokens = draw(c, 10) ? draw(c, 16) : CB_NO_LIMIT; /* within the context */
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
    if (c->welcome.features & CB_FEATURE_EPOCHS && draw(c, 4) == 0)
        r->planes |= CB_PLANE_EPOCHS;
    draw_wishes(c, r);
}

/* Spoils the entry, or what it points to, in one way; the status that it must get. */
static int spoil(struct sim_client *c, struct sim_request *r, struct cb_request_entry *e)
{
    switch (draw(c, 8)) {
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
    default:
        e->planes |= 0x20;
        return CB_BAD_PLANES;
    }
}

static void submit(struct sim_client *c)
{
    struct sim_request r;
    struct cb_request_entry e;
    uint32_t region = 0;
    uint64_t block[32];
    if (!cb_lane_client_can_submit(c->lc, 1))
        return;
    while (region < REGIONS && c->regions >> region & 1)
        region++;
    if (region == REGIONS)
        return;
    draw_request(c, &r);
    r.region = region;
    cb_message_init(&e);
    e.priority = draw(c, 2) ? draw(c, 256) : draw(c, 3);
    e.n_prompt = r.n_prompt;
    e.prompt_off = (uint64_t)region * REGION_BYTES;
    e.max_new_tokens = r.max_new_tokens;
    e.temperature = r.temperature;
    e.seed = r.seed;
    e.deadline_ns = r.deadline_ns;
    e.flags = r.flags;
    e.planes = r.planes;
    e.user = r.user;
    const struct cb_message_text stop = {.bytes = r.stop, .n = strlen(r.stop)};
    const struct cb_message_options options = {.stop_ids = r.stop_ids,
                                               .n_stop_ids = r.n_stop_ids,
                                               .stops = &stop,
                                               .n_stops = r.stop[0] ? 1 : 0,
                                               .cache_salt = {"salt", r.is_salted ? 4 : 0},
                                               .sampling = &r.sampling,
                                               .biases = r.biases,
                                               .n_biases = r.n_biases,
                                               .allowed_ids = r.allowed,
                                               .n_allowed_ids = r.n_allowed,
                                               .banned_ids = r.banned,
                                               .n_banned_ids = r.n_banned};
    size_t n = cb_message_options_bytes(&options);
    if (n) {
        cb_message_options_build(&options, block);
        e.opt_off = e.prompt_off + PROMPT_BYTES;
        e.opt_len = (uint32_t)n;
        cb_lane_client_write_arena(c->lc, e.opt_off, block, n);
    }
    if (draw(c, 8) == 0)
        r.must_reject = spoil(c, &r, &e);
    cb_lane_client_write_arena(c->lc, (uint64_t)region * REGION_BYTES, r.prompt,
                               r.n_prompt * sizeof(uint32_t));
    int result = cb_lane_client_submit(c->lc, &e);
    if (result < 0) {
        sim_fail(c->sim, "client %u: submit gave %d", c->idx, result);
        return;
    }
    c->regions |= 1ull << region;
    r.slot = e.slot;
    r.gen = e.gen;
    r.is_sent = true;
    c->requests[e.slot] = r;
    c->n_left--;
    c->n_running++;
    c->sim->report->n_requests++;
    ring(c, result);
}

/* Of the request itself: before it is admitted, the slot table still speaks of the one before. */
static uint32_t emitted_so_far(const struct sim_client *c, const struct sim_request *r)
{
    struct cb_slot_view view;
    cb_lane_client_slot(c->lc, r->slot, &view);
    return view.gen == r->gen ? view.emitted : 0;
}

static void cancel(struct sim_client *c)
{
    uint32_t first = draw(c, SIM_SLOTS_MAX);
    for (uint32_t i = 0; i < SIM_SLOTS_MAX; i++) {
        struct sim_request *r = &c->requests[(first + i) % SIM_SLOTS_MAX];
        if (r->is_sent) {
            if (!r->was_cancelled) /* looked at before each step: not a token more */
                r->n_at_cancel = emitted_so_far(c, r);
            r->was_cancelled = true;
            ring(c, cb_lane_client_cancel(c->lc, r->slot, r->gen));
            return;
        }
    }
}

static void toggle_pause(struct sim_client *c)
{
    if (!(c->welcome.features & CB_FEATURE_PAUSE))
        return;
    c->wants_pause = !c->wants_pause;
    c->is_held = false;
    c->sim->report->n_pauses += c->wants_pause;
    ring(c, cb_lane_client_pause(c->lc, c->wants_pause));
}

/* From when the daemon acts on a pause, not a token more. */
static void check_pause(struct sim_client *c)
{
    bool begins = cb_lane_client_is_paused(c->lc) && !c->is_held && c->wants_pause;
    c->is_held |= begins;
    for (uint32_t i = 0; i < SIM_SLOTS_MAX && c->is_held; i++) {
        struct sim_request *r = &c->requests[i];
        if (r->is_sent && begins)
            r->n_held = emitted_so_far(c, r);
        if (r->is_sent && emitted_so_far(c, r) != r->n_held)
            sim_fail(c->sim, "client %u: request %llu went on though it is paused", c->idx,
                     (unsigned long long)r->user);
    }
}

/* Its arena bytes are ours again: whatever the daemon still needs of them is a bug. */
static void release_region(struct sim_client *c, struct sim_request *r)
{
    unsigned char garbage[REGION_BYTES];
    memset(garbage, (int)(0x80 | draw(c, 128)), sizeof garbage);
    cb_lane_client_write_arena(c->lc, (uint64_t)r->region * REGION_BYTES, garbage, sizeof garbage);
    c->regions &= ~(1ull << r->region);
}

/* ---- results --------------------------------------------------------------------------------- */

/* Log-probabilities of n tokens from `first` on: those of `alone`, as far as they were asked for. */
static bool same_logprobs(const struct sim_request *r, const float *logprobs,
                          const struct cb_top *top, const struct sim_logprobs *alone,
                          uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < n; i++) {
        if (logprobs[i] != alone[i].logprob)
            return false;
        if (r->planes & CB_PLANE_TOPK && memcmp(top + i * SIM_TOP, alone[i].top, sizeof alone->top))
            return false;
    }
    return true;
}

static void check_logprobs(struct sim_client *c, const struct sim_request *r,
                           const struct cb_slot_view *view, const struct sim_answer *alone)
{
    bool has_prompt = view->emitted || (view->state == CB_SLOT_FINISHED && !view->out_cap);
    if (r->planes & CB_PLANE_LOGPROBS && view->emitted &&
        !(view->logprobs &&
          same_logprobs(r, view->logprobs, view->top, alone->logprobs, 0, view->emitted)))
        sim_fail(c->sim, "client %u: log-probabilities of request %llu are not those it gets alone",
                 c->idx, (unsigned long long)r->user);
    if (r->planes & CB_PLANE_PROMPT && has_prompt &&
        !(view->prompt_logprobs &&
          same_logprobs(r, view->prompt_logprobs, view->prompt_top, alone->prompt, 1, r->n_prompt)))
        sim_fail(c->sim, "client %u: request %llu has its prompt scored otherwise than alone",
                 c->idx, (unsigned long long)r->user);
}

static void check_end(struct sim_client *c, struct sim_request *r, const struct cb_result_entry *e)
{
    struct sim *s = c->sim;
    struct cb_slot_view view;
    struct sim_answer alone;
    cb_lane_client_slot(c->lc, r->slot, &view);
    if (view.gen != r->gen || (view.emitted && !view.ids)) {
        sim_fail(s, "client %u: the slot of request %llu is not its own", c->idx,
                 (unsigned long long)r->user);
        return;
    }
    struct sim_request asked = *r;
    if (r->max_new_tokens == CB_NO_LIMIT && view.out_cap) /* or as much as its lane has room for */
        asked.max_new_tokens = view.out_cap;
    sim_expect(s, &asked, &alone);
    if (view.emitted > alone.n_tokens ||
        (view.emitted && memcmp(view.ids, alone.tokens, view.emitted * sizeof(uint32_t)) != 0))
        sim_fail(s, "client %u: tokens of request %llu differ from those it gets alone", c->idx,
                 (unsigned long long)r->user);
    check_logprobs(c, r, &view, &alone);
    for (uint32_t i = 0; r->planes & CB_PLANE_EPOCHS && i < view.emitted; i++)
        if (!view.epochs || view.epochs[i] != 0)
            sim_fail(s, "client %u: request %llu is not of the first weights", c->idx,
                     (unsigned long long)r->user);
    for (uint32_t i = 0; view.times && i < view.emitted; i++)
        if (view.times[i] < (i ? view.times[i - 1] : 0) || view.times[i] > view.total_ns)
            sim_fail(s, "client %u: request %llu has times out of order", c->idx,
                     (unsigned long long)r->user);
    if ((r->planes & CB_PLANE_TIMES && view.emitted && !view.times) ||
        (view.first_token_ns &&
         (view.total_ns < view.first_token_ns || view.first_token_ns < view.queued_ns)))
        sim_fail(s, "client %u: request %llu has no sensible times", c->idx,
                 (unsigned long long)r->user);
    uint32_t finish = view.finish & 0xff;
    if (finish == CB_FINISH_DEADLINE && view.total_ns > r->deadline_ns + LATE_NS)
        sim_fail(s, "client %u: request %llu ended %llu ms after its deadline", c->idx,
                 (unsigned long long)r->user,
                 (unsigned long long)((view.total_ns - r->deadline_ns) / 1000000));
    if (r->was_cancelled && view.emitted > r->n_at_cancel)
        sim_fail(s, "client %u: request %llu went on after its cancel", c->idx,
                 (unsigned long long)r->user);
    if (e->type == CB_RESULT_FINISHED) {
        if (view.emitted != alone.n_tokens || view.finish != alone.finish)
            sim_fail(s,
                     "client %u: request %llu ended by %#x after %u tokens, alone by %#x after %u",
                     c->idx, (unsigned long long)r->user, view.finish, view.emitted, alone.finish,
                     alone.n_tokens);
        if (finish == CB_FINISH_STOP &&
            (view.stop_idx != alone.stop_idx ||
             (!(view.finish & CB_FINISH_STOP_ID) && view.text_bytes != alone.text_bytes)))
            sim_fail(s, "client %u: request %llu stopped elsewhere than alone", c->idx,
                     (unsigned long long)r->user);
        s->report->n_finished++;
    } else if (e->type == CB_RESULT_CANCELLED) {
        if (!(finish == CB_FINISH_CANCELLED && r->was_cancelled) &&
            !(finish == CB_FINISH_DEADLINE && r->deadline_ns))
            sim_fail(s, "client %u: request %llu was cancelled by nobody (%u)", c->idx,
                     (unsigned long long)r->user, finish);
        s->report->n_cancelled++;
    } else {
        sim_fail(s, "client %u: request %llu failed with %d", c->idx, (unsigned long long)r->user,
                 view.error);
    }
    sim_note(s, (uint64_t)view.emitted << 32 | view.finish);
    for (uint32_t i = 0; i < view.emitted; i++)
        sim_note(s, view.ids[i]);
}

static bool is_beyond_pool(const struct sim_client *c, const struct sim_request *r)
{
    return cb_run_layout(r->max_new_tokens, r->n_prompt, r->planes).bytes >
           c->welcome.geometry.down_pool_bytes;
}

/* Whether the refusal names the request's deadline, and a later end. */
static bool is_late(const struct sim_request *r, const struct cb_result_entry *e)
{
    return r->deadline_ns && e->last == r->deadline_ns / 1000000 && e->first > e->last;
}

static void check_accepted(struct sim_client *c, struct sim_request *r,
                           const struct cb_result_entry *e)
{
    if (r->was_accepted || r->must_reject)
        sim_fail(c->sim, "client %u: request %llu was accepted, which can't be", c->idx,
                 (unsigned long long)r->user);
    if (e->last == 0 ? e->first != 0
                     : e->first > e->last || (r->deadline_ns && r->max_new_tokens != CB_NO_LIMIT &&
                                              e->last > r->deadline_ns / 1000 + 1))
        sim_fail(c->sim, "client %u: request %llu is to start at %u and end at %u us", c->idx,
                 (unsigned long long)r->user, e->first, e->last);
    c->sim->report->n_predicted += e->last > 0;
    r->was_accepted = true;
}

static void check_rejected(struct sim_client *c, struct sim_request *r,
                           const struct cb_result_entry *e)
{
    int status = (int)e->count;
    const struct settings *set = &c->sim->settings;
    bool is_load = (status == CB_BUSY && set->max_queue_size) ||
                   (status == CB_QUOTA && r->n_prompt > set->uid_waiting_tokens) ||
                   (status == CB_QUOTA && r->max_new_tokens != CB_NO_LIMIT &&
                    r->n_prompt + r->max_new_tokens > set->max_held_tokens) ||
                   (status == CB_QUOTA && e->first == CB_LIMIT_POOL && is_beyond_pool(c, r)) ||
                   (status == CB_NO_CAPACITY && sim_is_too_big(c->sim, r)) ||
                   (status == CB_TOO_LATE && is_late(r, e)) ||
                   (status == CB_DRAINING && c->sim->is_ending);
    c->sim->report->n_too_late += status == CB_TOO_LATE;
    if (r->must_reject ? status != r->must_reject && !is_load : !is_load)
        sim_fail(c->sim, "client %u: request %llu was rejected with %d, not %d", c->idx,
                 (unsigned long long)r->user, status, r->must_reject);
    sim_note(c->sim, (uint64_t)(uint32_t)status);
    c->sim->report->n_rejected++;
}

/* Takes one result, if there is one. */
static bool poll_one(struct sim_client *c)
{
    struct cb_result_entry e;
    int r = cb_lane_client_poll(c->lc, &e);
    if (r < 0)
        sim_fail(c->sim, "client %u: poll gave %d", c->idx, r);
    if (r <= 0 || !(r & CB_LANE_ENTRY))
        return false;
    ring(c, r);
    sim_note(c->sim, (uint64_t)c->idx << 40 | (uint64_t)e.type << 32 | e.slot);
    if (e.type == CB_RESULT_LANE)
        return true;
    struct sim_request *q = e.slot < SIM_SLOTS_MAX ? &c->requests[e.slot] : NULL;
    if (!q || !q->is_sent || q->user != e.user || q->gen != e.gen) {
        sim_fail(c->sim, "client %u: a result of type %u for nobody", c->idx, e.type);
        return true;
    }
    switch (e.type) {
    case CB_RESULT_ACCEPTED:
        check_accepted(c, q, &e);
        release_region(c, q);
        return true;
    case CB_RESULT_TOKENS: {
        uint32_t emitted = cb_lane_client_emitted(c->lc, q->slot);
        if (!q->was_accepted || emitted < q->n_seen || e.first + e.count > emitted ||
            q->flags & CB_FLAG_FINAL_ONLY)
            sim_fail(c->sim, "client %u: tokens of request %llu out of order", c->idx,
                     (unsigned long long)q->user);
        q->n_seen = emitted;
        return true;
    }
    case CB_RESULT_REJECTED:
        check_rejected(c, q, &e);
        release_region(c, q);
        break;
    default:
        if (!q->was_accepted) {
            if (e.type != CB_RESULT_CANCELLED)
                sim_fail(c->sim, "client %u: request %llu ended before it was accepted", c->idx,
                         (unsigned long long)q->user);
            release_region(c, q);
        }
        check_end(c, q, &e);
        break;
    }
    q->is_sent = false;
    c->n_running--;
    ring(c, cb_lane_client_free(c->lc, q->slot));
    return true;
}

/* ---- sleep ----------------------------------------------------------------------------------- */

static bool sock_is_readable(const struct sim_client *c)
{
    char byte;
    ssize_t n = recv(c->sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n >= 0 || errno != EAGAIN;
}

static void park(struct sim_client *c)
{
    if (c->wake == CB_WAKE_SOCKET) { /* emptied before it arms, so that a bell keeps it readable */
        char record[CB_RECORD_BYTES];
        while (recv(c->sock, record, sizeof record, MSG_DONTWAIT) > 0)
            ;
    }
    if (cb_lane_client_park(c->lc, &c->bell) != CB_LANE_NOTHING) {
        cb_lane_client_unpark(c->lc);
        return;
    }
    c->is_parked = true;
    c->parked_ns = c->sim->time.now_ns;
}

static bool was_rung(const struct sim_client *c)
{
    if (c->wake == CB_WAKE_SOCKET)
        return sock_is_readable(c);
    return cb_load32(cb_lane_client_bell_word(c->lc), CB_ACQUIRE) != c->bell ||
           cb_lane_client_closed(c->lc);
}

static void wake_up(struct sim_client *c)
{
    if (!was_rung(c) && cb_lane_client_pending(c->lc))
        sim_fail(c->sim, "client %u: results waited and it was not woken", c->idx);
    c->is_parked = false;
    cb_lane_client_unpark(c->lc);
}

/* ---- misdeeds -------------------------------------------------------------------------------- */

static void misbehave(struct sim_client *c)
{
    struct cb_up_hot *hot = c->up.base;
    uint64_t *words = c->up.base;
    uint64_t wild = (uint64_t)draw(c, UINT32_MAX) << 32 | draw(c, UINT32_MAX);
    switch (draw(c, 9)) {
    case 0:
        cb_store64(&hot->req_sent, wild, CB_RELEASE);
        break;
    case 1:
        cb_store64(&hot->res_taken, wild, CB_RELEASE);
        break;
    case 2:
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) - 1, CB_RELEASE);
        break;
    case 3:
        cb_store32(&hot->parked, (uint32_t)wild, CB_RELAXED);
        break;
    case 4: /* a random entry, published */
        for (uint32_t i = 0; i < 64; i++)
            words[c->welcome.geometry.up_ring_off / 8 + draw(c, 256)] = wild * (i + 1);
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) + 1, CB_RELEASE);
        break;
    case 5:
        for (uint32_t i = 0; i < 256; i++)
            words[draw(c, (uint32_t)(c->up.bytes / 8))] = wild * (i + 1);
        break;
    case 6:
        cb_store32(&hot->pause, (uint32_t)wild, CB_RELAXED);
        break;
    case 7: {
        char record[300];
        memset(record, (int)draw(c, 256), sizeof record);
        (void)send(c->sock, record, draw(c, 2) ? 256 : 1 + draw(c, 299),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    }
    default:
        (void)cb_doorbell_send(c->sock, (enum cb_record_type)(1 + draw(c, 8)));
        break;
    }
    (void)cb_doorbell_send(c->sock, CB_RECORD_BELL);
}

void sim_client_die(struct sim_client *c)
{
    static const uint64_t one = 1;
    c->sim->report->n_deaths++;
    switch (draw(c, 3)) {
    case 0: /* a forked child keeps the socket: only the pidfd tells */
        if (write(c->death, &one, sizeof one) < 0)
            sim_fail(c->sim, "can't signal a death");
        drop_memory(c);
        c->state = SIM_OVER;
        return;
    case 1:
        (void)cb_doorbell_send(c->sock, CB_RECORD_BYE);
        break;
    default:
        break;
    }
    sim_client_fini(c);
}

/* ---- a life ---------------------------------------------------------------------------------- */

bool sim_client_can_act(const struct sim_client *c)
{
    switch (c->state) {
    case SIM_AWAY:
        return !c->sim->is_ending;
    case SIM_GREETED:
    case SIM_MUTE:
        return sock_is_readable(c);
    case SIM_LIVE:
        return !c->is_parked || was_rung(c) || c->sim->time.now_ns - c->parked_ns >= SIM_NET_NS;
    case SIM_OVER:
        break;
    }
    return false;
}

uint64_t sim_client_next_ns(const struct sim_client *c)
{
    return c->state == SIM_LIVE && c->is_parked ? c->parked_ns + SIM_NET_NS : LOOP_FOREVER;
}

static void live(struct sim_client *c)
{
    if (c->is_parked)
        wake_up(c);
    if (cb_lane_client_closed(c->lc)) {
        if (!c->is_hostile && cb_lane_client_closed(c->lc) != CB_CLOSED_STOPPED)
            sim_fail(c->sim, "client %u: an honest lane was closed (%u)", c->idx,
                     cb_lane_client_closed(c->lc));
        sim_client_fini(c);
        return;
    }
    check_pause(c);
    uint32_t what = draw(c, 100);
    if (c->is_hostile && what < 20) {
        misbehave(c);
    } else if (c->is_hostile) {
        struct cb_result_entry e; /* looks no further: what it gets is its own doing */
        if (what < 60)
            (void)cb_lane_client_poll(c->lc, &e);
        else if (what < 62)
            sim_client_die(c);
        else
            park(c);
    } else if (what < 30 && c->n_left > 0) {
        submit(c);
    } else if (what < 35) {
        cancel(c);
    } else if (what < 36) {
        sim_client_die(c);
    } else if (what < (c->wants_pause ? 55u : 38u)) {
        toggle_pause(c);
    } else if (what < 80) {
        if (!poll_one(c)) {
            if (c->n_running == 0 && c->n_left == 0)
                sim_client_die(c);
            else if (c->n_running > 0)
                park(c);
        }
    } else if (c->n_running > 0) {
        park(c);
    }
}

void sim_client_act(struct sim_client *c)
{
    sim_note(c->sim, (uint64_t)c->idx << 8 | c->state);
    switch (c->state) {
    case SIM_AWAY:
        greet(c);
        break;
    case SIM_GREETED:
        welcomed(c);
        break;
    case SIM_MUTE: /* told to go, or never */
        sim_client_fini(c);
        break;
    case SIM_LIVE:
        live(c);
        break;
    case SIM_OVER:
        break;
    }
}
