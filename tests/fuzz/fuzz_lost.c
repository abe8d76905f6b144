/* What a client reads of lanes whose daemon died: the slot tables and runs of two boots, one after the
 * other, are bytes of the input, and the library's records of its requests must stay sound. Whatever
 * stands there, tokens are in the vocabulary, within the limit, never fewer than were told, and never
 * others; and each request has one end in the end. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "client/internal.h"
#include "client/reconnect.h"
#include "client/record.h"
#include "shm/geometry.h"
#include "shm/message.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_SLOTS = 4, N_VOCAB = 64, N_CONTEXT = 48, N_PROMPT = 3, N_BOOTS = 2, POOL_BYTES = 65536 };

/* One boot's segments. */
struct boot {
    struct cb_geometry g;
    unsigned char *up, *down;
    void *record;
};

static void boot_new(struct boot *b, uint32_t n_slots)
{
    const struct cb_lane_config config = {.lane_id = 1};
    assert(cb_geometry_make(&b->g, n_slots, 0, POOL_BYTES, N_VOCAB, N_CONTEXT) == 0);
    b->up = aligned_alloc(4096, (b->g.up_bytes + 4095) / 4096 * 4096);
    b->down = aligned_alloc(4096, (b->g.down_bytes + 4095) / 4096 * 4096);
    b->record = calloc(1, cb_lane_bytes(&b->g));
    assert(b->up && b->down && b->record);
    memset(b->up, 0, b->g.up_bytes);
    memset(b->down, 0, b->g.down_bytes);
    cb_lane_init(b->record, &b->g, b->up, b->down, &config);
}

static void boot_free(struct boot *b)
{
    free(b->up);
    free(b->down);
    free(b->record);
}

static struct cb_link *link_new(const struct boot *b, uint32_t serial)
{
    struct cb_link *link = calloc(1, sizeof *link);
    struct cb_piece *pieces = calloc(b->g.n_slots, sizeof *pieces);
    assert(link && pieces);
    link->serial = serial;
    link->sock = -1;
    link->geometry = b->g;
    link->features = CB_FEATURES;
    link->lane_memory = calloc(1, cb_lane_client_bytes(&b->g));
    link->of_slot = calloc(b->g.n_slots, sizeof *link->of_slot);
    assert(link->lane_memory && link->of_slot);
    cb_arena_init(&link->arena, pieces, b->g.n_slots, b->g.up_arena_bytes, 8);
    assert(cb_lane_client_init(&link->lane, link->lane_memory, &b->g, b->up, b->down) == 0);
    return link;
}

/* A record of a slot, mostly one that could be. */
static void write_slot(struct boot *b, const struct cb_held *q, struct input *in)
{
    struct cb_slot *s = (void *)(b->down + b->g.down_slots_off + q->slot * b->g.slot_stride);
    uint32_t which = (uint32_t)eat(in, 1), planes = q->record ? q->record->entry.planes : 0;
    struct cb_run_layout layout = cb_run_layout(N_CONTEXT - N_PROMPT, N_PROMPT, planes);
    uint64_t run = b->g.down_pool_off + q->slot * ((layout.bytes + 63) / 64 * 64);
    s->ctl = q->gen << 8 | (which & 7);
    s->emitted = (uint32_t)eat(in, 1) % 64;
    s->out_cap = which & 8 ? (uint32_t)eat(in, 1) : N_CONTEXT - N_PROMPT;
    s->out_off = run;
    s->n_prompt = N_PROMPT;
    s->planes = planes;
    s->finish = (uint32_t)eat(in, 1) % 9;
    s->times_off = layout.times_off ? run + layout.times_off : 0;
    s->logprobs_off = layout.logprobs_off ? run + layout.logprobs_off : 0;
    s->topk_off = layout.topk_off ? run + layout.topk_off : 0;
    s->epochs_off = layout.epochs_off ? run + layout.epochs_off : 0;
    s->prompt_off = layout.prompt_off ? run + layout.prompt_off : 0;
    uint32_t *ids = (void *)(b->down + run);
    for (uint32_t i = 0; i < N_CONTEXT - N_PROMPT; i++)
        ids[i] = (uint32_t)eat(in, 1) % (N_VOCAB + (which >= 250));
    /* A few bytes of it anything at all. */
    for (uint32_t n = which >> 4 & 3; n > 0; n--)
        ((unsigned char *)s)[eat(in, 1) % sizeof *s] = (unsigned char)eat(in, 1);
}

static void write_anywhere(struct boot *b, struct input *in)
{
    uint64_t from = b->g.down_slots_off;
    b->down[from + eat(in, 2) % (b->g.down_bytes - from)] = (unsigned char)eat(in, 1);
}

static void submit(struct cb_handle *h, struct input *in, uint64_t *idp)
{
    static const uint32_t prompt[N_PROMPT] = {1, 2, 3};
    uint32_t which = (uint32_t)eat(in, 1);
    struct cb_request r;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = which & 1 ? CB_NO_LIMIT : 5 + which % 40;
    r.flags = (which & 2 ? CB_RESUMABLE : 0) | (which & 4 && which & 2 ? CB_RESTART : 0) |
              (which & 8 ? CB_TIMES | CB_EPOCHS : 0) |
              (which & 16 ? CB_LOGPROBS | CB_PROMPT_LOGPROBS : 0);
    r.top_logprobs = which & 16 && which & 32 ? 2 : 0;
    if (cb_submit(h, &r, idp))
        *idp = 0;
}

/* What is known of a request never goes back, but for a restart. */
struct known {
    uint64_t id;
    uint32_t n, ids[N_CONTEXT];
    uint32_t n_restarts;
};

static void check(struct cb_handle *h, struct known *k)
{
    const uint32_t *ids;
    const float *logprobs;
    const struct cb_top_logprob *top;
    const uint64_t *times;
    struct cb_result result;
    size_t n, n_planes;
    volatile float sum = 0;
    if (!k->id)
        return;
    const struct cb_held *q = cb_held_find_locked(h, k->id);
    assert(q && cb_tokens(h, k->id, &ids, &n) == 0 && cb_result(h, k->id, &result) == 0);
    if (q->n_restarts != k->n_restarts)
        k->n = 0;
    k->n_restarts = q->n_restarts;
    assert(n >= k->n && n <= N_CONTEXT && result.n_generated == n);
    for (size_t i = 0; i < n; i++)
        assert(ids[i] < N_VOCAB && (i >= k->n || ids[i] == k->ids[i]));
    if (n)
        memcpy(k->ids, ids, n * sizeof *ids);
    k->n = (uint32_t)n;
    if (cb_logprobs(h, k->id, &logprobs, &top, &n_planes) == 0 && logprobs)
        for (size_t i = 0; i < n_planes; i++)
            sum += logprobs[i] + (top ? top[2 * i + 1].logprob : 0);
    if (cb_prompt_logprobs(h, k->id, &logprobs, &top, &n_planes) == 0 && logprobs)
        for (size_t i = 0; i < n_planes; i++)
            sum += logprobs[i] + (top ? top[2 * i + 1].logprob : 0);
    if (cb_times(h, k->id, &times, &n_planes) == 0 && times)
        for (size_t i = 0; i < n_planes; i++)
            sum += (float)times[i];
    (void)sum; /* all of it was read */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const volatile unsigned char alive = 1;
    struct input in = {data, size};
    struct boot boots[N_BOOTS];
    struct known known[N_SLOTS] = {{0}};
    struct cb_options options;
    struct cb_handle *h = calloc(1, sizeof *h);
    struct cb_event event;
    int ring = 0;
    assert(h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_mutex_init(&h->text_lock, NULL);
    h->alive = &alive;
    h->n_held = N_SLOTS;
    h->n_vocab = N_VOCAB;
    h->n_context = N_CONTEXT;
    h->features = CB_FEATURES;
    h->held = calloc(N_SLOTS, sizeof *h->held);
    assert(h->held);
    boot_new(&boots[0], N_SLOTS);
    cb_link_set(h, link_new(&boots[0], 1));
    h->life_seen_ns = UINT64_MAX / 2; /* there is no socket to look at */
    cb_options_init(&options);
    options.resume_max = 1 + (uint32_t)eat(&in, 1) % 3;
    assert(cb_reconnect_new(h, &options) == 0);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        submit(h, &in, &known[i].id);
    for (uint32_t boot = 0; boot < N_BOOTS; boot++) {
        struct cb_link *link = h->link;
        for (uint32_t i = 0; i < N_SLOTS; i++)
            if (h->held[i].link == link)
                write_slot(&boots[boot], &h->held[i], &in);
        for (uint32_t n = (uint32_t)eat(&in, 1) % 8; n > 0; n--)
            write_anywhere(&boots[boot], &in);
        if (eat(&in, 1) % 4 == 0)
            cb_cancel(h, known[eat(&in, 1) % N_SLOTS].id);
        if (eat(&in, 1) % 4 == 0)
            (void)cb_scan_locked(h, cb_scan_locked(h, false));
        cb_lose_locked(h, CB_LOST);
        for (uint32_t i = 0; i < N_SLOTS; i++)
            check(h, &known[i]);
        if (boot + 1 == N_BOOTS)
            break;
        boot_new(&boots[boot + 1], 1 + (uint32_t)eat(&in, 1) % N_SLOTS);
        link->older = h->older;
        h->older = link;
        cb_link_set(h, link_new(&boots[boot + 1], boot + 2));
        h->is_away = false;
        cb_resend_locked(h, &ring);
        for (uint32_t i = 0; i < N_SLOTS; i++)
            check(h, &known[i]);
    }
    cb_give_up_locked(h, CB_LOST);
    assert(h->n_unended == 0 && !h->away_first);
    uint32_t n_ends = 0, n_due = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++)
        n_due += known[i].id != 0;
    while (cb_poll(h, &event) > 0)
        n_ends += event.type == CB_EVENT_END || event.type == CB_EVENT_REJECTED;
    assert(n_ends == n_due);
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        check(h, &known[i]);
        assert(!known[i].id || cb_release(h, known[i].id) == 0);
    }
    h->reconnect = cb_reconnect_free(h->reconnect);
    cb_link_free(h->link, false);
    for (struct cb_link *link = h->older, *older; link; link = older) {
        older = link->older;
        cb_link_free(link, false);
    }
    free(h->held);
    free(h);
    for (uint32_t boot = 0; boot < N_BOOTS; boot++)
        boot_free(&boots[boot]);
    return 0;
}
