/* client/batch.c - many prompts in, all their outputs back.
 *
 * As many requests run as the handle gives slots; each that ends is copied out and gives its slot to
 * the next. They are a group: no other thread's wait sees their events, and this one sees no others.
 *
 * Nothing here waits for ever. Every request that was sent has its end, also when the daemon dies;
 * what does not move for stall_ms is given up. */
#include "client/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/bar.h"
#include "client/outputs.h"

#define LOOK_MS 200 /* between two looks at what moves without an event */
#define NAP_NS  5000000
#define MS      1000000u

enum state { WAITS, RUNS, OVER };

struct item {
    enum state state;
    uint64_t id;   /* RUNS */
    bool is_alone; /* it was refused among others of its prompt: goes by itself */
};

struct batch {
    struct cb_handle *h;
    const struct cb_batch *given;
    struct cb_request config; /* without a prompt */
    struct cb_outputs_made *made;
    struct cb_group group;
    struct item *items; /* [made->outputs.n] */
    size_t n, n_over, n_running;
    size_t n_most;    /* as many may run as the daemon did not refuse, and one more with each end */
    bool was_refused; /* since something was sent */
    size_t first;     /* before it none waits */
    bool is_cancelled;
    struct cb_bar bar;
    uint64_t moved_ns; /* when something last moved */
    uint64_t n_seen;   /* tokens of those that run, at the last look */
};

/* ---- what was asked for ---------------------------------------------------------------------- */

static int check(const struct cb_batch *given)
{
    const struct cb_request *config = given->config;
    if (given->size != sizeof(*given))
        return cb_fail_at("cb_batch.size; use cb_batch_init", CB_INVALID, 0, 0);
    if (given->n_prompts && !given->prompts)
        return cb_fail_at("cb_batch.prompts", CB_INVALID, 0, 0);
    if (given->flags & ~(CB_BATCH_TIMES | CB_BATCH_NO_WARMUP | CB_BATCH_PER_REQUEST))
        return cb_fail_at("cb_batch.flags", CB_INVALID, 0, 0);
    if (given->stall_ms < -1 || given->stall_ms == 0)
        return cb_fail_at("cb_batch.stall_ms", CB_INVALID, 0, 0);
    if (config && config->size != sizeof(*config))
        return cb_fail_at("cb_batch.config; use cb_request_init", CB_INVALID, 0, 0);
    if (config &&
        (config->ids || config->text || config->messages || config->handler || config->user))
        return cb_fail_at("cb_batch.config has a prompt, a handler or a user", CB_INVALID, 0, 0);
    if (!given->n_sequences || given->n_sequences > 1u << 16)
        return cb_fail_at("cb_batch.n_sequences is not from 1 to 65536", CB_INVALID, 0, 0);
    if (given->n_sequences > 1 && !(config && config->temperature > 0))
        return cb_fail_at("greedy sequences of a prompt are all the same: cb_batch.n_sequences is "
                          "above 1 without a temperature",
                          CB_INVALID, 0, 0);
    return 0;
}

/* What of its own a prompt may not have: NULL: it has none of that. What the configuration leaves
 * off stays off, as where processors are made once for all. */
static const char *not_allowed(const struct batch *b, const struct cb_prompt *p)
{
    const struct cb_request *config = &b->config;
    bool may = b->given->flags & CB_BATCH_PER_REQUEST && config->temperature > 0;
    if (p->temperature && !(may && config->temperature != 1))
        return "temperature";
    if (p->top_k && !(may && config->top_k > 0))
        return "top_k";
    if (p->top_p && !(may && config->top_p < 1))
        return "top_p";
    return NULL;
}

static struct cb_request request_of(const struct batch *b, size_t i)
{
    const struct cb_output *o = &b->made->v[i];
    const struct cb_prompt *p = &b->given->prompts[o->prompt_idx];
    struct cb_request r = b->config;
    r.ids = o->prompt_ids;
    r.n_ids = o->n_prompt;
    r.child_idx += o->sequence;
    if (p->temperature)
        r.temperature = *p->temperature;
    if (p->top_k)
        r.top_k = *p->top_k;
    if (p->top_p)
        r.top_p = *p->top_p;
    return r;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void over(struct batch *b, size_t i)
{
    struct cb_progress progress = {.n = b->n, .output = &b->made->v[i]};
    if (b->items[i].state == RUNS)
        b->n_running--;
    b->items[i].state = OVER;
    progress.n_done = ++b->n_over;
    progress.n_failed = b->made->outputs.n_failed;
    b->moved_ns = cb_now_ns();
    cb_bar_show(&b->bar, b->n_over, progress.n_failed, false);
    if (b->given->progress && b->given->progress(&progress, b->given->progress_arg))
        b->is_cancelled = true;
}

static void failed(struct batch *b, size_t i, int status, const char *words)
{
    cb_outputs_fail(b->made, i, status, words);
    over(b, i);
}

/* All that is not over, of one state or both, ends like this. */
static void give_up(struct batch *b, bool running_too, int status, const char *words)
{
    for (size_t i = 0; i < b->n; i++) {
        struct item *it = &b->items[i];
        if (it->state == OVER || (it->state == RUNS && !running_too))
            continue;
        if (it->state == RUNS)
            cb_release(b->h, it->id);
        failed(b, i, status, words);
    }
}

static void ended(struct batch *b, const struct cb_event *event)
{
    size_t i = (size_t)event->user; /* that of the first it was sent with */
    while (b->items[i].id != event->id)
        i++;
    struct item *it = &b->items[i];
    bool is_quota = event->status == CB_QUOTA && !it->is_alone;
    if (event->type == CB_EVENT_REJECTED && (is_quota || event->status == CB_BUSY)) {
        it->is_alone = it->is_alone || is_quota; /* else others wait: later */
        it->state = WAITS;
        b->n_running--;
        b->n_most = b->n_running ? b->n_running : 1;
        b->was_refused = true;
        b->first = i < b->first ? i : b->first;
        cb_release(b->h, event->id);
        return;
    }
    cb_outputs_take(b->made, i, b->h, event);
    cb_release(b->h, event->id);
    b->n_most += b->n_most < SIZE_MAX;
    over(b, i);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Ids of all prompts, for requests and outputs; a prompt that has none fails alone. */
static void read_prompt(struct batch *b, size_t prompt_idx)
{
    const struct cb_prompt *p = &b->given->prompts[prompt_idx];
    struct cb_request r = b->config;
    const uint32_t *ids = NULL;
    uint32_t *own = NULL;
    const char *key = not_allowed(b, p), *words;
    char text[160];
    size_t n = 0;
    int status;
    r.ids = p->ids;
    r.n_ids = p->n_ids;
    r.text = p->text;
    r.text_bytes = p->text_bytes;
    r.messages = p->messages;
    r.n_messages = p->n_messages;
    status = cb_prompt_ids(b->h, &r, &ids, &own, &n);
    words = cb_message();
    if (!status && !own) {
        own = malloc((n ? n : 1) * sizeof(*own));
        if (own && n)
            memcpy(own, ids, n * sizeof(*own));
        else if (!own)
            words = cb_strerror(status = CB_NO_MEMORY);
    }
    if (own)
        cb_outputs_set_prompt(b->made, prompt_idx, own, n);
    if (!status && key) {
        snprintf(text, sizeof(text),
                 "it has a %s of its own, which needs CB_BATCH_PER_REQUEST and one in the "
                 "configuration",
                 key);
        status = CB_INVALID;
        words = text;
    }
    for (uint32_t s = 0; status && s < b->made->n_sequences; s++)
        failed(b, prompt_idx * b->made->n_sequences + s, status, words);
}

/* ---- running --------------------------------------------------------------------------------- */

/* How many from this one on can be one request: they wait, and are of one prompt. */
static uint32_t family_of(const struct batch *b, size_t i)
{
    size_t prompt_idx = b->made->v[i].prompt_idx;
    uint32_t n = 1, most = b->h->n_held < CB_CHILDREN_MAX ? b->h->n_held : CB_CHILDREN_MAX;
    while (n < most && !b->items[i].is_alone && i + n < b->n &&
           b->made->v[i + n].prompt_idx == prompt_idx && b->items[i + n].state == WAITS &&
           !b->items[i + n].is_alone)
        n++;
    return n;
}

/* Sends n of one prompt in one: 0, CB_BUSY, or they have failed. */
static int send_family(struct batch *b, size_t first, uint32_t n)
{
    struct cb_request r = request_of(b, first);
    uint64_t id = 0, now = cb_now_ns();
    r.user = first;
    r.n = n;
    int status = cb_group_submit(b->h, &b->group, &r, &id);
    if (status == CB_BUSY)
        return status;
    for (size_t i = first; i < first + n; i++) {
        if (status) {
            failed(b, i, status, cb_message());
            continue;
        }
        b->made->v[i].created_ns = now;
        b->items[i].id = id + (i - first);
        b->items[i].state = RUNS;
        b->n_running++;
    }
    return status;
}

/* Sends what there is room for, here and by the daemon's late refusals: 0, or CB_BUSY. What is of one prompt goes in one, where there are so
 * many slots in a row; in pieces, if none of ours could make them free. What is drawn is the same. */
static int send_some(struct batch *b)
{
    while (b->first < b->n && b->n_running < b->n_most) {
        uint32_t n = b->items[b->first].state == WAITS ? family_of(b, b->first) : 1;
        n = n < b->n_most - b->n_running ? n : (uint32_t)(b->n_most - b->n_running);
        if (b->items[b->first].state == WAITS) {
            int status = send_family(b, b->first, n);
            while (status == CB_BUSY && n > 1 && !b->n_running) {
                n /= 2;
                status = send_family(b, b->first, n);
            }
            if (status == CB_BUSY)
                return status;
        }
        b->first += n;
    }
    return 0;
}

static void cancel_all(struct batch *b)
{
    give_up(b, false, 0, "it was cancelled");
    for (size_t i = 0; i < b->n; i++)
        if (b->items[i].state == RUNS)
            cb_cancel(b->h, b->items[i].id);
}

/* Tokens come without events, so what moves is looked for; false: too long nothing did. */
static bool moves(struct batch *b)
{
    uint64_t n = 0, now = cb_now_ns();
    for (size_t i = 0; i < b->n; i++) {
        const uint32_t *ids;
        size_t n_ids = 0;
        if (b->items[i].state == RUNS && !cb_tokens(b->h, b->items[i].id, &ids, &n_ids))
            n += n_ids;
    }
    if (n != b->n_seen)
        b->moved_ns = now;
    b->n_seen = n;
    return b->given->stall_ms < 0 || now - b->moved_ns < (uint64_t)b->given->stall_ms * MS;
}

static void run(struct batch *b)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    bool cancelled = false;
    b->moved_ns = cb_now_ns();
    while (b->n_over < b->n) {
        struct cb_event event;
        int r = 0;
        if (b->is_cancelled && !cancelled) {
            cancelled = true;
            cancel_all(b);
        }
        if (b->was_refused && !b->n_running) /* the queue is full of others' */
            nanosleep(&nap, NULL);
        b->was_refused = false;
        if (!cancelled)
            send_some(b);
        if (b->n_running)
            r = cb_group_wait(b->h, &b->group, &event, LOOK_MS);
        else if (b->n_over < b->n) /* every slot is others' */
            nanosleep(&nap, NULL);
        if (r > 0) {
            ended(b, &event);
            if (!b->was_refused)
                continue;
        }
        if (r < 0 && r != CB_TIMEOUT) {
            give_up(b, true, r, cb_message());
        } else if (!moves(b)) {
            char words[96];
            snprintf(words, sizeof(words), "nothing has moved for %lld ms",
                     (long long)b->given->stall_ms);
            give_up(b, true, CB_TIMEOUT, words);
        }
        cb_bar_show(&b->bar, b->n_over, b->made->outputs.n_failed, false);
    }
}

/* One token of nobody's, so that the first real one does not pay for memory that was never touched. */
int cb_warmup(struct cb_handle *h, int64_t timeout_ms)
{
    static const uint32_t first_id = 0;
    struct cb_group group = {{NULL, NULL}};
    struct cb_request request;
    struct cb_event event;
    uint64_t id;
    int r = cb_enter(h);
    if (r || timeout_ms < -1)
        return cb_fail(r ? r : CB_INVALID);
    pthread_mutex_lock(&h->lock);
    bool is_warm = h->is_warm;
    pthread_mutex_unlock(&h->lock);
    if (is_warm)
        return 0;
    cb_request_init(&request);
    request.ids = &first_id;
    request.n_ids = 1;
    request.max_new_tokens = 1;
    request.flags = CB_FINAL_ONLY | CB_HAS_SEED;
    r = cb_group_submit(h, &group, &request, &id);
    if (r)
        return r;
    r = cb_group_wait(h, &group, &event, timeout_ms);
    cb_release(h, id);
    if (r < 0)
        return r;
    if (event.status)
        return cb_fail_with(event.status, event.detail[0], event.detail[1]);
    pthread_mutex_lock(&h->lock);
    h->is_warm = true;
    pthread_mutex_unlock(&h->lock);
    return 0;
}

/* The numbers of the names, on this handle. */
static uint64_t take_numbers(struct cb_handle *h, size_t n)
{
    pthread_mutex_lock(&h->lock);
    uint64_t first = h->n_batched;
    h->n_batched += n;
    pthread_mutex_unlock(&h->lock);
    return first;
}

static int run_batch(struct batch *b)
{
    const struct cb_batch *given = b->given;
    b->made = cb_outputs_new(given->n_prompts, given->n_sequences,
                             b->h ? take_numbers(b->h, given->n_prompts) : 0);
    if (!b->made)
        return cb_fail(CB_NO_MEMORY);
    b->n = b->made->outputs.n;
    b->n_most = SIZE_MAX;
    b->made->n_top = b->config.top_logprobs;
    b->items = calloc(b->n ? b->n : 1, sizeof(*b->items));
    if (!b->items) {
        cb_outputs_free(&b->made->outputs);
        return cb_fail(CB_NO_MEMORY);
    }
    if (b->n) {
        cb_bar_init(&b->bar, given->progress_fd, b->n, 0);
        for (size_t p = 0; p < given->n_prompts; p++)
            read_prompt(b, p);
        if (!(given->flags & CB_BATCH_NO_WARMUP))
            cb_warmup(b->h, given->stall_ms); /* its failing says nothing of those that follow */
        run(b);
        cb_bar_end(&b->bar, b->n_over, b->made->outputs.n_failed);
    }
    free(b->items);
    return 0;
}

int cb_generate_batch(struct cb_handle *h, const struct cb_batch *batch,
                      struct cb_outputs **outputsp)
{
    struct batch b = {.h = h, .given = batch};
    struct cb_handle *own = NULL;
    int r = h ? cb_enter(h) : 0;
    if (outputsp)
        *outputsp = NULL;
    if (r || !batch || !outputsp)
        return cb_fail(r ? r : CB_INVALID);
    r = check(batch);
    if (!r && !h && batch->n_prompts)
        r = cb_open(&own, batch->open);
    if (r)
        return r;
    if (own)
        b.h = own;
    cb_request_init(&b.config);
    if (batch->config)
        b.config = *batch->config;
    b.config.flags |= CB_FINAL_ONLY;
    if (batch->flags & CB_BATCH_TIMES)
        b.config.flags |= CB_TIMES;
    if (batch->max_new_tokens != CB_NO_LIMIT)
        b.config.max_new_tokens = batch->max_new_tokens;
    r = run_batch(&b);
    cb_close(own);
    if (r)
        return r;
    *outputsp = &b.made->outputs;
    return b.made->outputs.n_failed > INT32_MAX ? INT32_MAX : (int)b.made->outputs.n_failed;
}
