/* daemon/model/model.h - a model that runs steps: a transformer over a backend, or the null model.
 *
 * The engine sees only this. Two bodies: forward.c (any architecture that config.c knows, over the
 * operators of kernels/kernels.h) and null.c (next token = hash of the ids so far, no arithmetic).
 * A step is submitted, then polled; on CPUs it is done when submit returns. One step in flight at
 * most. Loop thread only. Nothing allocates after model_open but model_reload_*. */
#ifndef CB_DAEMON_MODEL_MODEL_H
#define CB_DAEMON_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct model;
struct vocab_image; /* daemon/model/vocabulary.h: the bytes that become VOCAB */

#define MODEL_EOS_MAX     16
#define MODEL_MESSAGE_MAX 512
#define MODEL_POOL_ALL    UINT64_MAX
#define MODEL_GROUPS_MAX  2

struct model_config {
    const char *path;    /* a GGUF file, or "null"                                            */
    const char *backend; /* "cpu" or "reference"; the null model ignores it                   */
    struct backend_config backend_config;
    enum dtype kv_dtype; /* DTYPE_BF16, DTYPE_U8 or DTYPE_F32                                 */
    uint32_t page_size;  /* tokens a block                                                    */
    uint32_t n_blocks;   /* 0: model_open chooses by max_memory_percent                       */
    /* Share of available memory; 0: the smaller of 0.6 of it and eight contexts. */
    double max_memory_percent;
    /* Room beside the cache for what does not fit there: whole blocks in so many bytes, but no more
     * than that share of the memory that is left. 0: none; MODEL_POOL_ALL: all of that share. */
    uint64_t pool_bytes;
    double pool_share;
    uint32_t max_batch_tokens, max_batch_seqs; /* a step's bounds */
    uint32_t null_vocab, null_context; /* sizes of the null model; 0: 49152, 131072        */
    uint32_t null_step_us;             /* the null model's step takes this long; 0: no time */
    bool without_uring;                /* read the file without io_uring                    */
    /* Called now and then while a file is loaded, with its tensors' bytes so far; may be NULL. Not 0:
     * the load ends with -ECANCELED. */
    int (*progress)(void *progress_ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};

struct model_info {
    char name[64]; /* general.name of the file, or "null"     */
    char arch[32]; /* "llama", "null"                         */
    uint32_t n_vocab, n_context, n_layers;
    uint32_t page_size;
    /* Of the cache. With one group of layers a block holds page_size tokens of all layers; with
     * more it is a sector, which each group may cut into blocks of its own. */
    uint32_t n_blocks;
    size_t block_bytes;
    /* Blocks of the pool beside it, numbered from n_blocks on. No step reads or writes there:
     * model_copy_block moves what they hold. */
    uint32_t n_pool_blocks;
    int pool_pin_error; /* 0: the pool can't be swapped out; else the errno why it can */
    uint32_t n_groups;
    struct model_group {
        uint32_t blocks_per_sector;
        uint32_t window; /* 0: its layers see all keys; else so many, the query's own included */
    } groups[MODEL_GROUPS_MAX];
    size_t weight_bytes; /* packed                                  */
    uint64_t file_bytes; /* of the model file                       */
    uint32_t n_eos;
    uint32_t eos[MODEL_EOS_MAX];
    uint32_t bos; /* 0xffffffff: none                        */
    bool add_bos;
    uint64_t fingerprint[2]; /* digest of weights, numeric contract, kv type */
    struct backend_caps caps;
};

/* Opens and loads. 0 or a negative errno; then `message` (MODEL_MESSAGE_MAX bytes) says what was
 * wrong, where, and what to do. On 0 *modelp is the caller's to free. */
int model_open(struct model **modelp, const struct model_config *config, char *message);
struct model *model_free(struct model *m); /* NULL is fine; returns NULL */

const struct model_info *model_info(const struct model *m);

/* The vocabulary to publish; lives as long as the model. Never NULL: the null model has one as
 * well. */
const struct vocab_image *model_vocab(const struct model *m);

/* Backs blocks [block_idx, block_idx + n) with memory: at most a few MiB a call, between steps. The
 * pool's as well. */
int model_populate(struct model *m, uint32_t block_idx, uint32_t n_blocks);
/* Makes a group's block that had another user as good as new, for models that need it. */
int model_clear_block(struct model *m, uint32_t group, uint32_t block_idx);

/* Copies all of a group's block into another one that has memory; either may be the pool's. */
int model_copy_block(struct model *m, uint32_t group, uint32_t from_idx, uint32_t to_idx);

/* Runs one step, which is given as each group sees it, step[n_groups]: samples[i] for output i of
 * the step, by params[i]. A sequence's tokens have an output each at most, and only one that reads
 * no logits. The arrays of step and params, and what these point to, must stay until poll says
 * done. 0 or a negative errno (the device failed). */
int model_step_submit(struct model *m, const struct step *step, const struct sample_params *params,
                      uint64_t *ticketp);

/* Takes other weights of this very model from the file fd, whose bytes nobody changes any more, as a
 * whole or not at all. Architecture, shapes and vocabulary must be those that run, types of tensors
 * need not. The null model's file is the text "null weights N" and a newline, N a number, 0 what it
 * begins with. Steps may run between these calls, and nothing changes for them but by the third:
 *   begin    looks at the file: 0, or a negative errno with message, and nothing is begun. fd stays the
 *            caller's, and open; `name` is for messages. One at a time.
 *   some     reads on, a slice that is short beside a step, a few hundred of which are all: 0: all is
 *            there; MODEL_RELOAD_MORE; or a negative errno with message, and nothing is begun any more
 *   publish  after 0, while no step is in flight: all steps from then on have them
 *   drop     instead; fine if nothing is begun
 * They call the heap, and need memory for both sets of weights meanwhile: where there is none, begin
 * or some refuses. */
int model_reload_begin(struct model *m, int fd, const char *name, char *message);
enum { MODEL_RELOAD_MORE = 1 };
int model_reload_some(struct model *m, char *message);
void model_reload_publish(struct model *m);
void model_reload_drop(struct model *m);

enum { MODEL_STEP_RUNNING = 1 };
/* 0: done, samples [n_outputs] written; MODEL_STEP_RUNNING: not yet; negative errno: failed. */
int model_step_poll(struct model *m, uint64_t ticket, struct sample *samples);

/* An errand: fn(arg) beside what the caller does next, where the model has a thread that is awake
 * after a step; else at once. fn uses nothing of the model's. False: an earlier one is still under
 * way, and this is not begun. Settled, there is none. */
bool model_errand(struct model *m, void (*fn)(void *arg), void *arg);
void model_settle(struct model *m);

#endif
