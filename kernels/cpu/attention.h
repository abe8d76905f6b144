/* kernels/cpu/attention.h - what the two halves of attention share: attention.c cuts a step in
 * items and merges spans, attention_span.c computes one span. Compiled once an instruction set. */
#ifndef CB_KERNELS_CPU_ATTENTION_H
#define CB_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/level.h"

enum {
    ATTENTION_SUB_ROWS = 8, /* rows whose scores are made together: 8 KiB */
    FEW_ROWS = 4 /* so few wait for memory, not for arithmetic: what is next is fetched meanwhile */
};

struct attention_job {
    struct cpu_stream *s;
    const struct attention_args *args;
    const struct tensor *o, *q;
    const struct kv *kv;
    uint32_t n_items;      /* (tile, KV head) */
    bool is_quantised;     /* o is not written but put where the next product wants it */
    uint32_t group;        /* query heads a KV head */
    uint32_t o_stride;     /* floats of a partial's vector: head_dim rounded up to 16 */
    uint32_t split_spans;  /* 0: items have all their spans; else so many items a tile and head */
    uint32_t partial_rows; /* split: rows reserved a (tile, head)                               */
};

/* Keys and values that the worker takes after those at hand: block by block of 16 keys. They are
 * fetched evenly while it computes, so that memory is never idle. */
struct attention_ahead {
    const uint8_t *blocks[KERNELS_SPAN / 16];
    uint32_t n_blocks; /* 0: not known */
};

/* A worker's scratch, carved from the stream's. */
struct attention_scratch {
    uint8_t *q;   /* [32][head_dim] coefficients     */
    float *score; /* [8][256]                        */
    uint8_t *p;   /* [8][256] coefficients, in place */
    float *part;  /* [8][o_stride]                   */
    float *total; /* [32][o_stride]                  */
    struct attention_ahead ahead;
};

/* What is known of a row besides its vector. */
struct attention_softmax {
    float m, l;
    bool seen; /* some key was visible */
};

/* A row of a tile, and its visible keys in the span at hand: [lo, hi). */
struct attention_row {
    uint32_t token, head;
    uint32_t first, end; /* visible positions [first, end) */
    uint32_t lo, hi;
};

/* q of rows [0, n_rows), scaled in f32, then rounded to bf16 unless keys are f32, to c->q. */
void LEVEL(attention_queries)(const struct attention_job *job, const struct attention_scratch *c,
                              const struct attention_row *rows, uint32_t n_rows);

/* Partials of rows [0, n_rows), at most ATTENTION_SUB_ROWS, over one span: vectors to c->part, the
 * rest to sm; where a row sees no key of the span its vector is not written. q: the first row's
 * coefficients. */
void LEVEL(attention_span)(const struct attention_job *job, const struct attention_scratch *c,
                           const uint8_t *q, uint32_t seq_idx, uint32_t kv_head, uint32_t span,
                           struct attention_row *rows, uint32_t n_rows,
                           struct attention_softmax *sm);

#endif
