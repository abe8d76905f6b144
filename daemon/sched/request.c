/* Every place of the pool has its own range of reserved address space for ids, for its block table
 * and for its stops. Addresses are cheap and pages are not: an arena shared by all would need
 * chunks or would fragment, and would make a step chase them; this is one flat array a request that
 * costs what it holds. */
#include "daemon/sched/request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096, KEEP_BYTES = 64 * 1024 };

/* What few requests have, apart so that it costs a page only where it is used. */
struct stops_place {
    uint32_t stop_ids[CB_STOP_IDS_MAX];
    struct cb_stops stops;
};

/* n_places ranges of place_bytes, reserved and zero. */
struct ranges {
    uint8_t *base;
    size_t place_bytes, all_bytes;
};

struct requests {
    struct request *all; /* [n_requests] */
    uint32_t n_requests, n_free;
    uint64_t n_tokens; /* prompts and limits of those taken */
    uint32_t n_faults;
    uint32_t tokens_max, n_groups, blocks_max;
    struct list free; /* the latest released first: its pages are there already */
    struct ranges ids, tables, stops, wishes;
};

static int ranges_init(struct ranges *g, uint32_t n_places, size_t bytes)
{
    g->place_bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    g->all_bytes = g->place_bytes * n_places;
    void *p = mmap(NULL, g->all_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return -ENOMEM;
    g->base = p;
    return 0;
}

static void ranges_fini(struct ranges *g)
{
    if (g->base)
        munmap(g->base, g->all_bytes);
}

static void *ranges_at(const struct ranges *g, uint32_t place)
{
    return g->base + (size_t)place * g->place_bytes;
}

/* Lets the system have the pages of a place that used much. A refusal costs memory, nothing
 * else. */
static void ranges_trim(const struct ranges *g, uint32_t place, size_t used_bytes)
{
    if (used_bytes > KEEP_BYTES)
        madvise(ranges_at(g, place), g->place_bytes, MADV_DONTNEED);
}

int requests_new(struct requests **requestsp, uint32_t n_requests, uint32_t tokens_max,
                 uint32_t n_groups, uint32_t blocks_max)
{
    struct requests *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->n_requests = p->n_free = n_requests;
    p->tokens_max = tokens_max;
    p->n_groups = n_groups;
    p->blocks_max = blocks_max;
    list_init(&p->free);
    p->all = calloc(n_requests, sizeof *p->all);
    int r = p->all ? 0 : -ENOMEM;
    if (!r)
        r = ranges_init(&p->ids, n_requests, (size_t)tokens_max * sizeof(uint32_t));
    if (!r)
        r = ranges_init(&p->tables, n_requests,
                        2 * (size_t)n_groups * blocks_max * sizeof(uint32_t));
    if (!r)
        r = ranges_init(&p->stops, n_requests, sizeof(struct stops_place));
    if (!r)
        r = ranges_init(&p->wishes, n_requests, sizeof(struct sampler_lists));
    if (r) {
        requests_free(p);
        return r;
    }
    for (uint32_t i = 0; i < n_requests; i++)
        list_append(&p->free, &p->all[i].link);
    *requestsp = p;
    return 0;
}

struct requests *requests_free(struct requests *p)
{
    if (p) {
        ranges_fini(&p->ids);
        ranges_fini(&p->tables);
        ranges_fini(&p->stops);
        ranges_fini(&p->wishes);
        free(p->all);
        free(p);
    }
    return NULL;
}

/* The wishes, and the ids that end it. */
static void add_wishes(struct request *r, const struct request_spec *spec,
                       const struct request_vocab *vocab, struct sampler_lists *lists)
{
    uint32_t ends[SAMPLER_ENDS_MAX], n = spec->ignore_eos ? 0 : vocab->n_eos;
    assert(vocab->n_eos <= SAMPLER_EOS_MAX);
    if (n > 0)
        memcpy(ends, vocab->eos, n * sizeof *ends);
    if (spec->n_stop_ids > 0)
        memcpy(ends + n, spec->stop_ids, spec->n_stop_ids * sizeof *ends);
    sampler_wish(&r->sampler, spec->wishes, lists, ends, n + spec->n_stop_ids);
}

struct request *requests_take(struct requests *p, const struct request_spec *spec,
                              const struct request_vocab *vocab, uint64_t now_ns)
{
    assert(spec->n_prompt > 0 && spec->n_prompt <= p->tokens_max);
    assert(spec->max_new_tokens <= p->tokens_max - spec->n_prompt);
    assert(spec->n_stop_ids <= CB_STOP_IDS_MAX);
    if (list_is_empty(&p->free))
        return NULL;
    struct request *r = list_entry(p->free.next, struct request, link);
    list_remove(&r->link);
    p->n_free--;
    p->n_tokens += (uint64_t)spec->n_prompt + spec->max_new_tokens;
    uint32_t place = (uint32_t)(r - p->all);
    *r = (struct request){
        .phase = REQUEST_WAITING,
        .ids = ranges_at(&p->ids, place),
        .n_ids = spec->n_prompt,
        .n_prompt = spec->n_prompt,
        .max_new_tokens = spec->max_new_tokens,
        .n_scored = 1,
        .n_stop_ids = spec->n_stop_ids,
        .ignore_eos = spec->ignore_eos,
        .priority = spec->priority,
        .deadline_ns = spec->deadline_ns,
        .uid = spec->uid,
        .paused = spec->paused,
        .owner = spec->owner,
        .on_new_weights = spec->on_new_weights,
        .end = {.submitted_ns = now_ns, .n_prompt = spec->n_prompt},
    };
    list_init(&r->link);
    list_init(&r->queue_link);
    list_init(&r->end_link);
    list_init(&r->sibling);
    list_init(&r->children);
    uint32_t *rows = ranges_at(&p->tables, place);
    table_init(&r->table, rows, p->n_groups, p->blocks_max);
    table_init(&r->aside, rows + (size_t)p->n_groups * p->blocks_max, p->n_groups, p->blocks_max);
    sampler_init(&r->sampler, spec->temperature, spec->top_k, spec->top_p, spec->seed,
                 vocab->n_vocab);
    r->sampler.child_idx = spec->child_idx;
    if (spec->wishes)
        add_wishes(r, spec, vocab, ranges_at(&p->wishes, place));
    memcpy(r->ids, spec->prompt, spec->n_prompt * sizeof *r->ids);
    struct stops_place *stops = ranges_at(&p->stops, place);
    r->stop_ids = stops->stop_ids;
    if (spec->n_stop_ids > 0)
        memcpy(r->stop_ids, spec->stop_ids, spec->n_stop_ids * sizeof *r->stop_ids);
    if (spec->stops) {
        r->stops = &stops->stops;
        memcpy(r->stops, spec->stops, sizeof *r->stops);
    }
    return r;
}

void requests_release(struct requests *p, struct request *r)
{
    p->n_faults += r->table.n_blocks != 0 || request_is_aside(r);
    assert(list_is_empty(&r->link) && list_is_empty(&r->end_link));
    assert(list_is_empty(&r->queue_link));
    assert(list_is_empty(&r->sibling) && list_is_empty(&r->children));
    uint32_t place = (uint32_t)(r - p->all);
    ranges_trim(&p->ids, place, r->n_ids * sizeof *r->ids);
    ranges_trim(&p->tables, place, 2 * (size_t)p->n_groups * r->n_ids * sizeof(uint32_t));
    list_prepend(&p->free, &r->link);
    p->n_free++;
    p->n_tokens -= (uint64_t)r->n_prompt + r->max_new_tokens;
}

uint32_t requests_n_free(const struct requests *p)
{
    return p->n_free;
}

uint32_t requests_n_faults(const struct requests *p)
{
    return p->n_faults;
}

void requests_recount(struct requests *p)
{
    p->n_faults = p->n_free = 0;
    p->n_tokens = 0;
    for (uint32_t i = 0; i < p->n_requests; i++)
        p->all[i].is_lost = true;
    for (struct list *link = p->free.next; link != &p->free; link = link->next) {
        list_entry(link, struct request, link)->is_lost = false;
        p->n_free++;
    }
    for (uint32_t i = 0; i < p->n_requests; i++) {
        struct request *r = &p->all[i];
        if (r->is_lost && (r->n_prompt == 0 || r->end.ended_ns != 0)) { /* nobody has it */
            r->is_lost = false;
            list_init(&r->link);
            list_prepend(&p->free, &r->link);
            p->n_free++;
        }
        if (r->is_lost)
            p->n_tokens += (uint64_t)r->n_prompt + r->max_new_tokens;
    }
}

struct request *requests_find_lost(struct requests *p)
{
    for (uint32_t i = 0; i < p->n_requests; i++)
        if (p->all[i].is_lost)
            return &p->all[i];
    return NULL;
}

uint64_t requests_n_tokens(const struct requests *p)
{
    return p->n_tokens;
}

void request_soft_reset(struct request *r, struct cache *c)
{
    cache_clear(c, &r->table);
    r->phase = REQUEST_WAITING;
    r->past = 0;
    r->starved_tokens = 0;
    r->n_soft_resets++;
}

static bool find_id(const uint32_t *ids, uint32_t n_ids, uint32_t id, uint32_t *idxp)
{
    for (uint32_t i = 0; i < n_ids; i++)
        if (ids[i] == id) {
            *idxp = i;
            return true;
        }
    return false;
}

enum finish request_append(struct request *r, uint32_t token, const uint32_t *eos, uint32_t n_eos,
                           const uint8_t *text, size_t n_text, uint64_t now_ns)
{
    assert(request_n_generated(r) < r->max_new_tokens && r->end.finish == FINISH_NONE);
    struct request_end *end = &r->end;
    struct cb_stop_match match;
    uint32_t eos_idx;
    r->ids[r->n_ids++] = token;
    end->n_generated++;
    if (end->first_token_ns == 0)
        end->first_token_ns = now_ns;
    if (find_id(r->stop_ids, r->n_stop_ids, token, &end->stop_idx)) {
        end->finish = FINISH_STOP;
        end->stop_is_id = true;
    } else if (!r->ignore_eos && find_id(eos, n_eos, token, &eos_idx)) {
        end->finish = FINISH_EOS;
    } else if (r->stops && cb_stop_feed(r->stops, &r->stop_state, text, n_text, &match)) {
        end->finish = FINISH_STOP;
        end->stop_idx = match.stop_idx;
        end->text_bytes = (uint32_t)match.text_bytes;
    } else if (request_n_generated(r) == r->max_new_tokens) {
        end->finish = FINISH_LENGTH;
    }
    return end->finish;
}

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

int request_check(const struct request *r, uint32_t page_size, bool between_steps,
                  const char **whyp)
{
    if (r->n_ids < r->n_prompt || request_n_generated(r) > r->max_new_tokens)
        return unclean(whyp, "request: more ids than prompt and limit");
    if (r->end.n_generated != request_n_generated(r))
        return unclean(whyp, "request: its count of generated tokens is not its ids'");
    if (r->past > r->n_ids || r->table.n_blocks > r->table.max_blocks)
        return unclean(whyp, "request: past or blocks above their bounds");
    if (r->phase == REQUEST_WAITING && r->table.n_blocks != 0)
        return unclean(whyp, "request: it waits and holds blocks");
    if (r->aside.n_blocks !=
        (r->phase == REQUEST_WAITING ? table_blocks_for(r->past, page_size) : 0))
        return unclean(whyp, "request: what was put aside is not its past");
    if (r->phase != REQUEST_WAITING && r->table.n_blocks < table_blocks_for(r->past, page_size))
        return unclean(whyp, "request: fewer blocks than its past needs");
    if (r->phase == REQUEST_WAITING && r->past >= r->n_ids)
        return unclean(whyp, "request: it waits with nothing to compute");
    if (!between_steps || r->end.finish != FINISH_NONE || r->phase == REQUEST_WAITING)
        return 0;
    if (r->table.n_blocks != table_blocks_for(r->past, page_size))
        return unclean(whyp, "request: more blocks than its past needs");
    if (r->phase == REQUEST_DECODING && r->n_ids - r->past != 1)
        return unclean(whyp, "request: it decodes with other than one id to compute");
    if (r->phase == REQUEST_PREFILLING && (r->past == 0 || r->past == r->n_ids))
        return unclean(whyp, "request: it prefills with nothing or everything computed");
    return 0;
}
