/* The masks make it a quadratic: they grow with the product of a step's tokens and all keys. First
 * the sectors that would fit without masks; then as many fewer as pay for the mask of that many,
 * rounded in favour of fitting: each sector less saves itself and its part of the mask. */
#include "daemon/cache/sizing.h"

#include <math.h>

#define LINE_BYTES    128 /* sectors begin on these                    */
#define TRASH_SECTORS 2   /* reads and writes of padding go there      */
#define LOGIT_BYTES   4
#define KEY_BYTES     8  /* where a key lies, for each group          */
#define TABLE_BYTES   4  /* an entry of a block table                 */
#define SCALAR_BYTES  28 /* id, position, lengths, ... of a token     */
#define OUTPUT_BYTES  4
#define PLACE_BYTES   16 /* where a token is written, for each group  */

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

static int64_t divide_up(int64_t a, int64_t b)
{
    return a > 0 ? (a - 1) / b + 1 : 0;
}

void sizing_sector(const struct sizing_layers *layers, struct sizing_sector *sector)
{
    int64_t page = (int64_t)layers->page_bytes;
    *sector = (struct sizing_sector){.bytes = LINE_BYTES};
    for (uint32_t g = 0; g < layers->n_groups; g++) {
        sector->bytes = common_multiple(sector->bytes, page * layers->n_layers[g]);
        sector->model_bytes += page * layers->n_layers[g];
    }
    for (uint32_t g = 0; g < layers->n_groups; g++) {
        sector->n_blocks[g] = (uint32_t)(sector->bytes / (page * layers->n_layers[g]));
        int64_t n_tokens = (int64_t)sector->n_blocks[g] * layers->page_size;
        if (n_tokens > sector->n_tokens)
            sector->n_tokens = n_tokens;
    }
}

int64_t sizing_sectors_for(const struct sizing_sector *sector, int64_t n_blocks)
{
    int64_t n = divide_up(n_blocks * sector->model_bytes, sector->bytes);
    return n > 1 ? n : 1;
}

/* ---- what fits ------------------------------------------------------------------------------- */

static int64_t mask_of(const struct sizing_costs *c, int64_t batch_tokens, int64_t n_sectors)
{
    return c->mask_bytes * batch_tokens * (n_sectors * c->sector_tokens + batch_tokens);
}

static int64_t choose(const struct sizing_costs *c, int64_t batch_tokens)
{
    int64_t left = c->available_bytes - c->fixed_bytes - batch_tokens * c->batch_token_bytes;
    int64_t n = left > 0 ? left / c->sector_bytes : 0;
    int64_t mask = mask_of(c, batch_tokens, n);
    return n - divide_up(mask, c->sector_bytes + mask_of(c, batch_tokens, n + 1) - mask);
}

int sizing_fit(const struct sizing_costs *c, int64_t batch_tokens, int64_t n_sectors,
               struct sizing_fit *fit)
{
    if (n_sectors == SIZING_NONE)
        n_sectors = choose(c, batch_tokens);
    *fit = (struct sizing_fit){
        .n_sectors = n_sectors,
        .footprint_bytes = c->fixed_bytes + batch_tokens * c->batch_token_bytes +
                           n_sectors * c->sector_bytes + mask_of(c, batch_tokens, n_sectors),
    };
    if (batch_tokens <= 0 || n_sectors <= 0)
        return SIZING_NOTHING;
    return fit->footprint_bytes > c->available_bytes ? SIZING_TOO_LARGE : 0;
}

/* ---- costs of the usual engine --------------------------------------------------------------- */

void sizing_costs(const struct sizing_model *m, const struct sizing_sector *sector,
                  const struct sizing_memory *memory, struct sizing_costs *costs)
{
    int64_t a = m->element_size, n_groups = m->n_groups, io = m->async ? 2 : 1;
    int64_t q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    int64_t gathered = m->flash ? 2 * kv : 2 * q + kv; /* of a token, as attention reads it */
    int64_t row = a * m->n_embd + LOGIT_BYTES * (int64_t)m->n_vocab;
    int64_t hidden = a * (m->n_embd + q + 2 * kv + gathered);
    int64_t inputs = SCALAR_BYTES + OUTPUT_BYTES * (m->logprobs ? 2 : 1) +
                     TABLE_BYTES * n_groups * m->max_blocks + PLACE_BYTES * n_groups;
    int64_t gone = memory->reserved_bytes > memory->allocated_bytes ? memory->reserved_bytes
                                                                    : memory->allocated_bytes;
    if (!m->selects && row > hidden)
        hidden = row;
    *costs = (struct sizing_costs){
        .available_bytes = (int64_t)floor((double)(memory->total_bytes - gone) * memory->share),
        .fixed_bytes = TRASH_SECTORS * sector->bytes + (m->selects ? m->max_requests * row : 0),
        .batch_token_bytes = hidden + io * inputs,
        .sector_bytes =
            sector->bytes + sector->n_tokens * (gathered * a + KEY_BYTES * io * n_groups),
        .sector_tokens = sector->n_tokens,
        .mask_bytes = m->flash ? 0 : io * (m->has_sliding ? 2 : 1) * a,
    };
}
