/* Which weights each token is of is known twice: from when they were switched, and from what the
 * request was told where it asked for that. Only what was told says whether a request that goes on
 * was computed anew meanwhile. */
#include <string.h>

#include "shm/status.h"
#include "tests/util/sim_client_parts.h"

#define LATE_NS 100000000ull /* after a deadline: the daemon slept over it */

/* ---- weights --------------------------------------------------------------------------------- */

static enum cb_on_weights wish_of(const struct sim_client *c, const struct sim_request *r)
{
    const char *otherwise = c->sim->settings.on_new_weights;
    uint32_t wish = (r->flags & CB_FLAG_ON_WEIGHTS) >> CB_FLAG_ON_WEIGHTS_SHIFT;
    if (wish)
        return (enum cb_on_weights)wish;
    return strcmp(otherwise, "restart") == 0 ? CB_ON_WEIGHTS_RESTART
           : strcmp(otherwise, "fail") == 0  ? CB_ON_WEIGHTS_FAIL
                                             : CB_ON_WEIGHTS_CONTINUE;
}

/* What was told of token i: its epoch, which is to be `epoch`, and whether what came before it was
 * computed anew; that began in epoch *firstp. */
static void check_told(struct sim_client *c, const struct sim_request *r, uint32_t i, uint32_t told,
                       uint32_t epoch, bool must_be_anew, uint32_t *firstp)
{
    bool is_anew = told & CB_EPOCH_ANEW;
    if ((told & ~CB_EPOCH_ANEW) != epoch)
        sim_fail(c->sim, "client %u: token %u of request %llu is told as of epoch %u, and is of %u",
                 c->idx, i, (unsigned long long)r->user, told & ~CB_EPOCH_ANEW, epoch);
    if (is_anew ? i == 0 || epoch <= *firstp : must_be_anew)
        sim_fail(c->sim, "client %u: request %llu %s computed anew before token %u", c->idx,
                 (unsigned long long)r->user, is_anew ? "was" : "was not", i);
    if (is_anew || i == 0)
        *firstp = epoch;
}

/* The epochs of a request's tokens, as they are told: false: that was not asked for, and can't be
 * known. */
static bool epochs_of(struct sim_client *c, const struct sim_request *r,
                      const struct cb_slot_view *view, uint32_t *epochs)
{
    enum cb_on_weights wish = wish_of(c, r);
    uint32_t first = 0;
    bool is_known = true;
    for (uint32_t i = 0; i < view->emitted; i++) {
        uint32_t epoch = sim_epoch_of(c->sim, r, i);
        bool is_switch = i > 0 && epoch != (epochs[i - 1] & ~CB_EPOCH_ANEW);
        bool is_anew = is_switch && wish == CB_ON_WEIGHTS_RESTART;
        if (is_switch && wish == CB_ON_WEIGHTS_FAIL)
            sim_fail(c->sim, "client %u: request %llu went on with other weights", c->idx,
                     (unsigned long long)r->user);
        epochs[i] = epoch | (is_anew ? CB_EPOCH_ANEW : 0);
        if (view->epochs) {
            check_told(c, r, i, view->epochs[i], epoch, is_anew, &first);
            epochs[i] = view->epochs[i];
        }
        is_known &= view->epochs || !is_switch || is_anew;
        c->sim->report->n_anew += (epochs[i] & CB_EPOCH_ANEW) != 0;
        c->sim->report->n_mixed += is_switch && !(epochs[i] & CB_EPOCH_ANEW);
    }
    if (view->emitted && view->weight_epoch != (epochs[view->emitted - 1] & ~CB_EPOCH_ANEW))
        sim_fail(c->sim, "client %u: request %llu ended in another epoch than its last token",
                 c->idx, (unsigned long long)r->user);
    return is_known;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

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
    /* Of which weights the prompt is, the first token tells. */
    bool is_of_one = view->emitted || r->epoch == c->sim->epoch;
    bool has_prompt = view->emitted || (view->state == CB_SLOT_FINISHED && !view->out_cap);
    if (r->planes & CB_PLANE_LOGPROBS && view->emitted &&
        !(view->logprobs &&
          same_logprobs(r, view->logprobs, view->top, alone->logprobs, r->n_given, view->emitted)))
        sim_fail(c->sim, "client %u: log-probabilities of request %llu are not those it gets alone",
                 c->idx, (unsigned long long)r->user);
    if (r->planes & CB_PLANE_PROMPT && has_prompt && is_of_one &&
        !(view->prompt_logprobs &&
          same_logprobs(r, view->prompt_logprobs, view->prompt_top, alone->prompt, 1, r->n_prompt)))
        sim_fail(c->sim, "client %u: request %llu has its prompt scored otherwise than alone",
                 c->idx, (unsigned long long)r->user);
}

/* All that it was told, against what it gets alone with these epochs. */
static void check_alone(struct sim_client *c, const struct sim_request *r,
                        const struct cb_slot_view *view, const uint32_t *epochs)
{
    struct sim *s = c->sim;
    struct sim_answer alone;
    struct sim_request asked = *r;
    if (r->max_new_tokens == CB_NO_LIMIT && view->out_cap) /* or as much as its lane has room for */
        asked.max_new_tokens = view->out_cap;
    sim_expect(s, &asked, epochs, view->emitted, &alone);
    if (view->emitted > alone.n_tokens ||
        (view->emitted && memcmp(view->ids, alone.tokens, view->emitted * sizeof(uint32_t)) != 0))
        sim_fail(s, "client %u: tokens of request %llu (child %u) differ from those it gets alone",
                 c->idx, (unsigned long long)r->user, r->child_idx);
    check_logprobs(c, r, view, &alone);
    if (view->state != CB_SLOT_FINISHED)
        return;
    if (view->emitted != alone.n_tokens || view->finish != alone.finish)
        sim_fail(s, "client %u: request %llu ended by %#x after %u tokens, alone by %#x after %u",
                 c->idx, (unsigned long long)r->user, view->finish, view->emitted, alone.finish,
                 alone.n_tokens);
    if ((view->finish & 0xff) == CB_FINISH_STOP &&
        (view->stop_idx != alone.stop_idx ||
         (!(view->finish & CB_FINISH_STOP_ID) && view->text_bytes != alone.text_bytes)))
        sim_fail(s, "client %u: request %llu stopped elsewhere than alone", c->idx,
                 (unsigned long long)r->user);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void check_times(struct sim_client *c, const struct sim_request *r,
                        const struct cb_slot_view *view)
{
    for (uint32_t i = r->n_given; view->times && i < view->emitted; i++)
        if (view->times[i] < (i > r->n_given ? view->times[i - 1] : 0) ||
            view->times[i] > view->total_ns)
            sim_fail(c->sim, "client %u: request %llu has times out of order", c->idx,
                     (unsigned long long)r->user);
    if ((r->planes & CB_PLANE_TIMES && view->emitted && !view->times) ||
        (view->first_token_ns &&
         (view->total_ns < view->first_token_ns || view->first_token_ns < view->queued_ns)))
        sim_fail(c->sim, "client %u: request %llu has no sensible times", c->idx,
                 (unsigned long long)r->user);
    if ((view->finish & 0xff) == CB_FINISH_DEADLINE && view->total_ns > r->deadline_ns + LATE_NS)
        sim_fail(c->sim, "client %u: request %llu ended %llu ms after its deadline", c->idx,
                 (unsigned long long)r->user,
                 (unsigned long long)((view->total_ns - r->deadline_ns) / 1000000));
}

/* Whether it was to end so. */
static void check_reason(struct sim_client *c, const struct sim_request *r,
                         const struct cb_slot_view *view)
{
    struct sim_report *report = c->sim->report;
    uint32_t finish = view->finish & 0xff;
    switch (view->state) {
    case CB_SLOT_FINISHED:
        report->n_finished++;
        return;
    case CB_SLOT_CANCELLED:
        if (!(finish == CB_FINISH_CANCELLED && r->was_cancelled) &&
            !(finish == CB_FINISH_DEADLINE && r->deadline_ns))
            sim_fail(c->sim, "client %u: request %llu was cancelled by nobody (%u)", c->idx,
                     (unsigned long long)r->user, finish);
        report->n_cancelled++;
        return;
    default:
        if (view->error != CB_NEW_WEIGHTS || wish_of(c, r) != CB_ON_WEIGHTS_FAIL ||
            view->emitted == 0 || sim_epoch_of(c->sim, r, view->emitted - 1) == c->sim->epoch)
            sim_fail(c->sim, "client %u: request %llu failed with %d after %u tokens", c->idx,
                     (unsigned long long)r->user, view->error, view->emitted);
        report->n_failed++;
    }
}

/* By its entry, or where there is none yet by its slot alone. */
static void check_end(struct sim_client *c, const struct sim_request *r,
                      const struct cb_result_entry *e)
{
    struct sim *s = c->sim;
    struct cb_slot_view view;
    uint32_t epochs[SIM_TOKENS_MAX];
    cb_lane_client_slot(c->lc, r->slot, &view);
    if (view.gen != r->gen || (view.emitted && !view.ids) || view.emitted > SIM_TOKENS_MAX ||
        (e && (view.state + (CB_RESULT_FINISHED - CB_SLOT_FINISHED) != e->type ||
               view.emitted != e->count))) {
        sim_fail(s, "client %u: the slot of request %llu is not its own", c->idx,
                 (unsigned long long)r->user);
        return;
    }
    if (r->planes & CB_PLANE_EPOCHS && view.emitted && !view.epochs)
        sim_fail(s, "client %u: request %llu is told nothing of its weights", c->idx,
                 (unsigned long long)r->user);
    if (epochs_of(c, r, &view, epochs))
        check_alone(c, r, &view, epochs);
    check_times(c, r, &view);
    check_reason(c, r, &view);
    if (r->was_cancelled && view.emitted > r->n_at_cancel)
        sim_fail(s, "client %u: request %llu went on after its cancel", c->idx,
                 (unsigned long long)r->user);
    sim_note(s, (uint64_t)view.emitted << 32 | view.finish);
    for (uint32_t i = 0; i < view.emitted; i++)
        sim_note(s, view.ids[i]);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Whether alone, in an empty house, it would take more than this limit allows. */
static bool is_over(const struct sim_client *c, const struct sim_request *r, enum cb_limit limit)
{
    const struct settings *set = &c->sim->settings;
    uint32_t n = r->n_children, n_new = r->max_new_tokens;
    uint64_t pool = c->welcome.geometry.down_pool_bytes / n;
    if (n_new == CB_NO_LIMIT) {
        uint32_t most = engine_tokens_max(c->sim->daemon->engine);
        uint32_t fits = cb_run_tokens_max(pool, r->n_prompt, r->planes);
        n_new = most - r->n_prompt < fits ? most - r->n_prompt : fits;
    }
    switch (limit) {
    case CB_LIMIT_UID_WAITING:
        return (uint64_t)n * (r->n_prompt + r->n_given) > set->uid_waiting_tokens;
    case CB_LIMIT_UID_REQUESTS:
        return n > set->uid_requests;
    case CB_LIMIT_REQUESTS:
        return n > set->max_requests;
    case CB_LIMIT_HELD_TOKENS:
        return (uint64_t)n * (r->n_prompt + n_new) > set->max_held_tokens;
    case CB_LIMIT_POOL:
        return cb_run_layout(n_new, r->n_prompt, r->planes).bytes > pool;
    default:
        return false;
    }
}

/* Whether the refusal names the request's deadline, and a later end. */
static bool is_late(const struct sim_request *r, const struct cb_result_entry *e)
{
    return r->deadline_ns && e->last == r->deadline_ns / 1000000 && e->first > e->last;
}

static void check_accepted(struct sim_client *c, struct sim_request *r,
                           const struct cb_result_entry *e)
{
    bool may_be = !r->was_accepted && !r->must_reject;
    for (int limit = CB_LIMIT_POOL; limit <= CB_LIMIT_REQUESTS; limit++)
        may_be &= !is_over(c, r, (enum cb_limit)limit);
    if (!may_be)
        sim_fail(c->sim, "client %u: request %llu was accepted, which can't be", c->idx,
                 (unsigned long long)r->user);
    /* One that goes on is not refused for its deadline: what it has by then is its answer. */
    bool is_bound = r->deadline_ns && r->max_new_tokens != CB_NO_LIMIT && !r->n_given;
    if (e->last == 0 ? e->first != 0
                     : e->first > e->last || (is_bound && e->last > r->deadline_ns / 1000 + 1))
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
    bool is_load =
        (status == CB_BUSY && set->max_queue_size) ||
        (status == CB_QUOTA && is_over(c, r, (enum cb_limit)e->first)) ||
        (status == CB_NO_CAPACITY && sim_is_too_big(c->sim, r)) ||
        (status == CB_TOO_LATE && is_late(r, e) && !r->n_given) ||
        (status == CB_CHANGED && r->n_given && c->welcome.weight_epoch != c->sim->epoch) ||
        (status == CB_DRAINING && c->sim->is_ending);
    c->sim->report->n_too_late += status == CB_TOO_LATE;
    if (r->must_reject ? status != r->must_reject && !is_load : !is_load)
        sim_fail(c->sim, "client %u: request %llu was rejected with %d (%u, %u), not %d", c->idx,
                 (unsigned long long)r->user, status, e->first, e->last, r->must_reject);
    sim_note(c->sim, (uint64_t)(uint32_t)status);
    c->sim->report->n_rejected++;
}

/* The family of this request is answered: all of it at once, in order, and alike. */
static void check_answer(struct sim_client *c, const struct sim_request *r,
                         const struct cb_result_entry *e)
{
    const struct cb_result_entry *first = &c->answer;
    if (c->is_hasty)
        return;
    if (c->n_answers == 0) {
        c->answer = *e;
        c->n_answers = r->n_children;
    } else if (e->type != first->type || e->user != first->user || e->first != first->first ||
               e->count != first->count || e->last != first->last) {
        sim_fail(c->sim, "client %u: a child of request %llu was answered otherwise than the first",
                 c->idx, (unsigned long long)r->user);
    }
    if (e->slot != first->slot + (r->n_children - c->n_answers))
        sim_fail(c->sim, "client %u: children of request %llu were answered out of order", c->idx,
                 (unsigned long long)r->user);
    c->n_answers--;
    c->sim->n_told += e->type != CB_RESULT_REJECTED;
}

/* What was told of a request; whether that ends it. */
static bool take_result(struct sim_client *c, struct sim_request *r,
                        const struct cb_result_entry *e)
{
    bool is_answer = !r->was_accepted && e->type != CB_RESULT_TOKENS;
    if (is_answer)
        check_answer(c, r, e);
    else if (c->n_answers)
        sim_fail(c->sim, "client %u: some of a family still have no answer", c->idx);
    if (is_answer)
        sim_client_release(c, r);
    switch (e->type) {
    case CB_RESULT_ACCEPTED:
        check_accepted(c, r, e);
        return false;
    case CB_RESULT_TOKENS: {
        uint32_t emitted = cb_lane_client_emitted(c->lc, r->slot);
        if (!r->was_accepted || emitted < r->n_seen || e->first + e->count > emitted ||
            r->flags & CB_FLAG_FINAL_ONLY)
            sim_fail(c->sim, "client %u: tokens of request %llu out of order", c->idx,
                     (unsigned long long)r->user);
        r->n_seen = emitted;
        return false;
    }
    case CB_RESULT_REJECTED:
        if (r->was_accepted)
            sim_fail(c->sim, "client %u: request %llu was accepted, then rejected", c->idx,
                     (unsigned long long)r->user);
        check_rejected(c, r, e);
        return true;
    default:
        if (is_answer && e->type != CB_RESULT_CANCELLED)
            sim_fail(c->sim, "client %u: request %llu ended before it was accepted", c->idx,
                     (unsigned long long)r->user);
        check_end(c, r, e);
        return true;
    }
}

static void give_back(struct sim_client *c, struct sim_request *r)
{
    r->is_sent = false;
    c->n_running--;
    sim_client_ring(c, cb_lane_client_free(c->lc, r->slot));
}

void sim_client_scan(struct sim_client *c)
{
    for (uint32_t i = 0; i < c->welcome.geometry.n_slots; i++) {
        struct sim_request *r = &c->requests[i];
        struct cb_slot_view view;
        cb_lane_client_slot(c->lc, i, &view);
        if (!r->is_sent || view.gen != r->gen || view.state < CB_SLOT_FINISHED)
            continue;
        sim_client_release(c, r);
        check_end(c, r, NULL);
        give_back(c, r);
    }
}

bool sim_client_poll(struct sim_client *c)
{
    struct cb_result_entry e;
    int result = cb_lane_client_poll(c->lc, &e);
    if (result < 0)
        sim_fail(c->sim, "client %u: poll gave %d", c->idx, result);
    if (result <= 0 || !(result & CB_LANE_ENTRY))
        return false;
    sim_client_ring(c, result);
    sim_note(c->sim, (uint64_t)c->idx << 40 | (uint64_t)e.type << 32 | e.slot);
    if (e.type == CB_RESULT_LANE)
        return true;
    struct sim_request *r = e.slot < SIM_SLOTS_MAX ? &c->requests[e.slot] : NULL;
    if (!r || !r->is_sent || r->user != e.user || r->gen != e.gen) {
        if (c->is_hasty) /* of one that was taken already */
            return true;
        sim_fail(c->sim, "client %u: a result of type %u for nobody", c->idx, e.type);
        return true;
    }
    if (take_result(c, r, &e))
        give_back(c, r);
    return true;
}

/* ---- pauses ---------------------------------------------------------------------------------- */

/* From when the daemon acts on a pause, not a token more. */
void sim_client_check_pause(struct sim_client *c)
{
    bool begins = cb_lane_client_is_paused(c->lc) && !c->is_held && c->wants_pause;
    c->is_held |= begins;
    for (uint32_t i = 0; i < c->welcome.geometry.n_slots && c->is_held; i++) {
        struct sim_request *r = &c->requests[i];
        if (r->is_sent && begins)
            r->n_held = sim_client_emitted(c, r);
        if (r->is_sent && sim_client_emitted(c, r) > r->n_held)
            sim_fail(c->sim, "client %u: request %llu went on though it is paused", c->idx,
                     (unsigned long long)r->user);
    }
}
