/* kernels/kernels.h - the operators' contract, for all backends.
 *
 * Model code is written once over the operators below; a backend is one `struct backend_ops`:
 *   reference   plain C, f32, and double sums where the contract leaves them free: the oracle of
 *               accuracy
 *   cpu         panels of 16 rows, AMX, AVX-512 VNNI and AVX2 chosen at run time, a pool of threads
 *   cuda        (later) a shared object opened at run time
 *
 * Rows are tokens. All activations are f32 on CPU backends. Buffers and rows are aligned to 64
 * bytes. Nothing allocates after load: a stream owns scratch sized once for max_batch_tokens.
 * Operators may refuse at load only (weight_new, kv_new, stream_new); at run time they return 0, or
 * a negative errno from a device that failed. Ids, pages and lengths are checked by the host before
 * a step is built; operators still clamp ids, for an unchecked gather is a hole.
 *
 * The numeric contract of the cpu backend: the result of a row depends on that row only. It is the
 * same bits for every batch, chunking, page size, thread count and instruction set. Sums are never
 * split in ways that depend on the step's shape. `kernels/numeric.h` states the orders. A backend
 * that was opened with batch_variant keeps none of this where that is faster.
 *
 * Threads: one thread drives a stream (it is worker 0 of the backend's pool). */
#ifndef CB_KERNELS_H
#define CB_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DTYPE_F32,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_Q4_0,
    DTYPE_Q4_1,
    DTYPE_Q8_0,
    DTYPE_COUNT, /* those of files and tensors */
    DTYPE_U8     /* keys and values only: 8-bit codes with an f32 scale and zero a token and head */
};

#define KERNELS_NO_SLOT   0xffffffffu /* step.slot_idx: write nothing; step.table: page freed     */
#define KERNELS_VOCAB_MAX ((1u << 20) - 1) /* rows of logits are no longer: sampling.h */
#define KERNELS_SPAN      256u /* keys in a span of attention, by absolute position          */

/* A view of rows. stride_bytes is the distance between rows. Whoever made the data owns it. */
struct tensor {
    void *data;
    enum dtype dtype;
    uint32_t n_rows, n_cols;
    size_t stride_bytes;
};

/* ---- one step: any mix of decode rows and prefill chunks, flat, nothing padded --------------- */

struct step {
    uint32_t n_tokens, n_seqs, n_outputs;
    uint32_t n_decode_seqs;    /* sequences [0, n_decode_seqs) have one token; they come first */
    const int32_t *tokens;     /* [n_tokens] ids */
    const int32_t *positions;  /* [n_tokens] absolute position in the sequence */
    const uint32_t *token_off; /* [n_seqs + 1] first token of each sequence in the flat list */
    const uint32_t *n_keys;    /* [n_seqs] keys present after this step's writes */
    const uint32_t *slot_idx;  /* [n_tokens] page * page_size + offset, or KERNELS_NO_SLOT */
    const uint32_t *table_off; /* [n_seqs + 1] offsets into table */
    /* Page numbers; entry i holds positions [i*P, (i+1)*P). A page may be in several tables, and
     * be written by one sequence and read by others in one step: in each layer all are written
     * before any is read. */
    const uint32_t *table;
    const uint32_t *output_token_idx; /* [n_outputs] the flat token whose logits are wanted */
};

/* ---- load time: weights, keys and values, buffers -------------------------------------------- */

struct backend;
struct weight; /* packed as the backend likes */
struct kv;     /* one pool of pages; page p holds page_size tokens of every layer */

/* n_rows rows of n_cols values in the file's own layout: rows contiguous, blocks of 32 for Q
 * formats (GGUF). Only read during weight_new. */
struct weight_part {
    const void *data; /* NULL: weight_fill brings the rows */
    enum dtype dtype;
    uint32_t n_rows;
};

enum weight_use {
    WEIGHT_LINEAR,  /* parts stacked: q over k over v, or one matrix */
    WEIGHT_GATE_UP, /* two parts of equal shape, gate and up; the backend interleaves them */
    WEIGHT_EMBED,   /* one part; rows can be gathered (embed) and multiplied (head) */
};

struct weight_spec {
    const char *name; /* for messages */
    enum weight_use use;
    uint32_t n_cols;
    uint32_t n_parts; /* 1 to 3; parts may differ in dtype and rows */
    struct weight_part parts[3];
};

/* One pool: n_layers x (K and V) x n_pages. Pages are reserved address space until populated. */
struct kv_shape {
    uint32_t n_layers, n_kv_heads, head_dim;
    uint32_t page_size; /* tokens; multiple of 16 on cpu, any from 4 up on reference */
    uint32_t n_pages;
    enum dtype dtype; /* DTYPE_BF16, DTYPE_U8 (numeric.h) or DTYPE_F32 */
};

struct page_copy {
    uint32_t from_page, to_page;
};

struct backend_config {
    uint32_t n_threads; /* 0: one a physical core, as far as the cgroup's quota goes             */
    const char *isa;    /* NULL or "auto": best; else "scalar", "avx2", "avx512vnni", ...       */
    uint32_t spin_us;   /* how long a worker spins before it sleeps; 0: default                 */
    bool pin_threads;   /* each to a core of its own, the opening thread too, until close */
    bool batch_variant; /* results may depend on the batch, for speed                           */
};

struct backend_caps {
    char name[16]; /* "reference", "cpu" */
    char isa[24];  /* level in use       */
    uint32_t n_threads;
    uint64_t weight_bytes; /* packed, and there  */
    /* Products of so many tokens and more are made in bf16, whatever the weights are, so that a row
     * depends on the batch; 0: none are. With batch_variant and 0, the static sentence says why. */
    uint32_t bf16_tokens;
    const char *bf16_refusal;
};

/* ---- operators' arguments -------------------------------------------------------------------- */

enum rope_kind {
    ROPE_NONE,
    ROPE_PAIRS, /* rotates dimensions (2i, 2i+1): GGUF's llama     */
    ROPE_HALVES /* rotates dimensions (i, i + n/2): qwen2, HF files */
};

/* cos_sin [n_positions][n_dims / 2][2] f32 in memory of the backend (buffer_new). */
struct rope {
    enum rope_kind kind;
    uint32_t n_dims, n_positions;
    const float *cos_sin;
};

enum activation { ACT_SILU, ACT_GELU_TANH };

struct qkv_args {
    const struct step *step;
    const struct weight *w; /* rows: n_heads*hd of q, then n_kv_heads*hd of k, then of v      */
    const float *norm_w;    /* [n_cols] RMS norm before the product; NULL: none               */
    float norm_eps;
    const float *bias;                /* [rows of w] or NULL */
    const float *q_norm_w, *k_norm_w; /* [hd] RMS norm a head, before RoPE; NULL: none */
    const struct rope *rope;
    uint32_t layer, n_heads, n_kv_heads, head_dim;
};

struct attention_args {
    const struct step *step;
    uint32_t layer, n_heads, n_kv_heads, head_dim;
    float scale;        /* multiplies q in f32                                               */
    uint32_t window;    /* 0: all keys; else a query at p sees keys in (p - window, p]       */
    float softcap;      /* 0: none; else cap * tanh(score / cap), before the mask            */
    const float *sinks; /* [n_heads] or NULL                                                 */
    const struct weight *next; /* the only reader of o is the linear of this weight, which
                                  follows at once: o's rows may be left unwritten; NULL: not so */
};

struct epilogue {
    const float *bias;             /* [rows of w] or NULL */
    const struct tensor *residual; /* added after the bias; may be y itself; NULL: none */
};

struct gate_up_args {
    const float *norm_w; /* as in qkv_args */
    float norm_eps;
    enum activation act;
    const struct weight *next; /* as in attention_args, for h */
};

/* What the head says of one output row. Greedy: the largest logit, the lower id among equals. */
struct head_row {
    uint32_t argmax;
    float max;
    uint32_t not_finite; /* not 0: some logit of the row was NaN or infinite */
};

struct head_args {
    const struct step *step;
    const float *norm_w;
    float norm_eps;
    float softcap;
    /* [n_outputs]: not 0: the row of logits is written; NULL: all are. */
    const uint8_t *want_logits;
};

#define SAMPLE_BEST_MAX 20u         /* log-probabilities of so many best tokens, in the daemon */
#define SAMPLE_NO_ID    0xffffffffu /* sample_best.id: fewer tokens are left than were asked for */

struct sample_bias {
    uint32_t id;
    float bias;
};

/* What a request wants of its rows beside temperature, top_k and top_p: constant for its life, and
 * the lists too. In this order: allowed and banned ids, bias, repetition penalty (each id of the
 * history once: x < 0 ? x * penalty : x / penalty), presence and frequency penalty (generated ids:
 * x - frequency * count - presence), ids that would make an n-gram of the history again, ends while
 * fewer than min_new_tokens were generated; then temperature, top_k, top_p, min_p, typical_p. */
struct sample_program {
    float min_p;                               /* 0: off                                    */
    float typical_p;                           /* 1: off                                    */
    float repetition_penalty;                  /* 1: off                                    */
    float presence_penalty, frequency_penalty; /* 0: off                                    */
    uint32_t no_repeat_ngram;                  /* n; 0: off                                 */
    uint32_t min_new_tokens;                   /* 0: off                                    */
    uint32_t n_biases, n_allowed, n_banned, n_ends;
    const struct sample_bias *biases; /* distinct ids                                       */
    const uint32_t *allowed;          /* strictly ascending; none: all are                  */
    const uint32_t *banned, *ends;
};

/* The token of a row, and the log-probabilities of which distribution. */
enum sample_logprobs {
    SAMPLE_NO_LOGPROBS,
    SAMPLE_PROCESSED, /* after all of the above; without the cuts and the temperature if greedy */
    SAMPLE_RAW        /* of the logits as they are */
};

struct sample_best {
    uint32_t id; /* best first, among equals the lower id; SAMPLE_NO_ID: there is none */
    float logprob;
};

/* Draws are Philox4x32-10 with key = seed, counter = (child_idx, token_idx, draw):
 * kernels/philox.h. What is pointed to stays until the step is done. */
struct sample_params {
    float temperature; /* 0: greedy                     */
    uint32_t top_k;    /* 0 or >= vocabulary: off       */
    float top_p;       /* 1: off                        */
    uint64_t seed;
    uint32_t child_idx, token_idx; /* index of the generated token since the original prompt */
    const struct sample_program *program; /* NULL: nothing more          */
    const uint32_t *ids;                  /* [n_ids] the history: a prompt of n_prompt ids, and what
                                             was generated; with a program only */
    uint32_t n_ids, n_prompt;
    bool is_given;     /* the token is given_id, whatever the row says */
    uint32_t given_id; /* below the vocabulary */
    enum sample_logprobs logprobs;
    uint32_t n_best;          /* at most SAMPLE_BEST_MAX; 0 without logprobs */
    struct sample_best *best; /* [n_best] to be written */
};

struct sample {
    uint32_t token;
    uint32_t not_finite;   /* not 0: token is meaningless, the request fails alone */
    uint32_t nothing_left; /* not 0: likewise, for every token was removed         */
    float logprob;         /* natural logarithm of the token's probability; 0 unless asked for */
};

/* Whether the row of logits is needed, or head_row says all. */
static inline bool sample_reads_logits(const struct sample_params *p)
{
    return p->logprobs != SAMPLE_NO_LOGPROBS ||
           (!p->is_given && (p->temperature > 0.0f || p->program));
}

/* ---- the table ------------------------------------------------------------------------------- */

/* A stream runs operators in order. Backends put this first in their own struct. */
struct stream {
    const struct backend_ops *ops;
};

struct stream_shape {
    uint32_t max_tokens, max_seqs, max_outputs;
    uint32_t max_cols; /* widest input or output row of any operator but the head */
    uint32_t n_vocab, n_heads, head_dim, max_context;
};

struct backend_ops {
    const char *name;

    /* 0 or negative errno (-ENOTSUP: isa not on this machine, or not known; -EINVAL: bad bound). On
     * error, *why is a static sentence. */
    int (*open)(struct backend **backendp, const struct backend_config *config, const char **why);
    struct backend *(*close)(struct backend *b); /* NULL is fine; returns NULL */
    void (*caps)(const struct backend *b, struct backend_caps *caps);

    /* An errand: fn(arg) on a thread of the backend's that happens to be awake, beside whatever the
     * caller does next, or else on the caller. fn does not use the backend. False: an earlier one is
     * still under way, and this is not begun. Settled, there is none, and the caller sees what it
     * wrote. Both NULL: there is no such thread. */
    bool (*errand)(struct backend *b, void (*fn)(void *arg), void *arg);
    void (*settle)(struct backend *b);

    /* Memory of the backend, 64-byte aligned; copied from `init`, or zeroed if NULL. */
    int (*buffer_new)(struct backend *b, void **datap, size_t bytes, const void *init);
    void *(*buffer_free)(struct backend *b, void *data);

    int (*weight_new)(struct backend *b, struct weight **weightp, const struct weight_spec *spec,
                      const char **why);
    /* Rows [row_idx, row_idx + n_rows) of a part that was made without data, in the file's layout;
     * every row once, in any order, before the weight is used. rows is only read during the call.
     */
    void (*weight_fill)(struct weight *w, uint32_t part_idx, uint32_t row_idx, uint32_t n_rows,
                        const void *rows);
    struct weight *(*weight_free)(struct weight *w);

    int (*kv_new)(struct backend *b, struct kv **kvp, const struct kv_shape *shape,
                  const char **why);
    struct kv *(*kv_free)(struct kv *kv);
    size_t (*kv_page_bytes)(const struct kv_shape *shape);
    int (*kv_populate)(struct kv *kv, uint32_t page_idx, uint32_t n_pages); /* backs with memory */
    /* Keeps these pages from being swapped out, as pin.h. 0 or a negative errno. */
    int (*kv_pin)(struct kv *kv, uint32_t page_idx, uint32_t n_pages);
    int (*kv_copy)(struct kv *kv, const struct page_copy *copies, uint32_t n_copies);

    int (*stream_new)(struct backend *b, struct stream **streamp, const struct stream_shape *shape);
    struct stream *(*stream_free)(struct stream *s);

    /* x [n_tokens, n_embd] = row tokens[i] of e, times scale (1: none). */
    int (*embed)(struct stream *s, struct tensor *x, const struct weight *e, const int32_t *tokens,
                 float scale);
    /* y = x / rms(x) * w; y may be x. */
    int (*rmsnorm)(struct stream *s, struct tensor *y, const struct tensor *x, const float *w,
                   float eps);
    /* q [n_tokens, n_heads*hd] after bias, q norm and RoPE, not scaled; k, v are written to their
     * slots, a sequence's in ascending order. What a page held for another sequence before may be
     * anything, and is never seen. */
    int (*qkv)(struct stream *s, struct tensor *q, struct kv *kv, const struct tensor *x,
               const struct qkv_args *args);
    /* o [n_tokens, n_heads*hd]; reads keys of this and earlier steps. */
    int (*attention)(struct stream *s, struct tensor *o, const struct tensor *q,
                     const struct kv *kv, const struct attention_args *args);
    /* y [n_tokens, rows of w] = x w^T (+ bias) (+ residual). */
    int (*linear)(struct stream *s, struct tensor *y, const struct tensor *x,
                  const struct weight *w, const struct epilogue *e);
    /* h [n_tokens, rows of gate] = act(gate) * up, of the normed x. */
    int (*gate_up)(struct stream *s, struct tensor *h, const struct tensor *x,
                   const struct weight *w, const struct gate_up_args *args);
    /* y row i = row rows[i] of x, for all rows of y; y is no part of x. */
    int (*gather)(struct stream *s, struct tensor *y, const struct tensor *x, const uint32_t *rows);
    /* For each output row i of the step: rows[i], and logits[i] [n_vocab] where wanted. logits has
     * n_outputs rows; those not wanted are left as they are. w may be an EMBED or a LINEAR
     * weight. */
    int (*head)(struct stream *s, struct tensor *logits, struct head_row *rows,
                const struct tensor *x, const struct weight *w, const struct head_args *args);
    /* samples[i] from logits row i, or from rows[i] alone unless sample_reads_logits. The logits
     * may be overwritten. */
    int (*sample)(struct stream *s, struct sample *samples, struct tensor *logits,
                  const struct head_row *rows, const struct sample_params *params,
                  uint32_t n_outputs);
};

extern const struct backend_ops backend_reference;
extern const struct backend_ops backend_cpu;

/* The backend of that name, or NULL. */
const struct backend_ops *backend_find(const char *name);

/* The operator gather of backends whose tensors lie in the process's own memory. */
int kernels_gather(struct stream *s, struct tensor *y, const struct tensor *x,
                   const uint32_t *rows);

/* "F32", "Q4_1", ... of a dtype; bytes of n_cols values in the file's layout (0: n_cols does not
 * fit the format's block). */
const char *dtype_name(enum dtype t);
size_t dtype_row_bytes(enum dtype t, uint32_t n_cols);

/* Sets flush-to-zero and denormals-are-zero on the calling thread; every thread that runs kernels,
 * tests included, calls it once. */
void kernels_thread_init(void);

#endif
