/* kernels/cpu/product.h - products of which a row of results needs nothing but itself, for the files
 * compiled once an instruction set.
 *
 * An item is two panels and a block of tokens: the panels stay in the first-level cache while the
 * tiles of the block pass, and what follows the product runs on a tile of results that has not left
 * it. */
#ifndef CB_KERNELS_CPU_PRODUCT_H
#define CB_KERNELS_CPU_PRODUCT_H

#include <stdalign.h>

#include "kernels/cpu/level.h"
#include "kernels/cpu/vec.h"

enum { UNIT_PANELS = 2, UNIT_ROWS = UNIT_PANELS * PANEL_ROWS };

struct product {
    struct cpu_stream *s;
    const struct weight *w;
    struct act act;
    struct cut cut;
};

/* Cuts the product of w with the rows that args say, and has the pool run its items. */
INLINE void product_run(struct product *p, struct cpu_stream *s, const struct act_args *args,
                        void (*items)(void *job, uint32_t worker, uint32_t begin, uint32_t end),
                        void *job)
{
    struct pool *pool = s->backend->pool;

    p->s = s;
    BASE(quant)(s, &p->act, p->w, args);
    p->cut = cut_product(weight_n_units(p->w, UNIT_PANELS), &p->act, pool_n_threads(pool));
    pool_run(pool, items, job, p->cut.n_units * p->cut.n_blocks, p->cut.run_max);
}

/* Items [begin, end): `finish` has the sums of n_rows rows of the weight, from row_idx on, with one
 * token; sums has room for whole panels and is finish's to spoil. */
INLINE void product_items(const struct product *p, uint32_t worker, uint32_t begin, uint32_t end,
                          void (*finish)(const void *arg, float *sums, uint32_t token,
                                         uint32_t row_idx, uint32_t n_rows),
                          const void *arg)
{
    alignas(64) float sums[MATMUL_TOKENS][UNIT_ROWS];
    const struct act act = act_of(&p->act, p->s, worker);

    LEVEL(matmul_begin)(&act);
    for (uint32_t item = begin; item < end; item++) {
        uint32_t token = item / p->cut.n_units * p->cut.block_tokens;
        uint32_t token_end = token + p->cut.block_tokens;
        struct unit u = weight_unit(p->w, UNIT_PANELS, item % p->cut.n_units);
        uint32_t row_idx = u.part->row_idx + u.panel_idx * PANEL_ROWS, n_rows = unit_n_rows(&u);

        if (token_end > act.n_tokens)
            token_end = act.n_tokens;
        for (uint32_t n; token < token_end; token += n) {
            n = matmul_n_tokens(&act, token, token_end);
            LEVEL(matmul)(sums[0], UNIT_ROWS, u.part, u.panel_idx, u.n_panels, &act, token, n);
            for (uint32_t t = 0; t < n; t++)
                finish(arg, sums[t], token + t, row_idx, n_rows);
        }
    }
    LEVEL(matmul_end)(&act);
}

#endif
