/* tests/util/tiny.h - small llama files for tests: random ones of any shape and type, and recorded
 * checkpoints converted on the fly. */
#ifndef CB_TESTS_UTIL_TINY_H
#define CB_TESTS_UTIL_TINY_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/util/gguf_write.h"

#define TINY_VOCAB \
    512u /* 0 to 2: <|endoftext|> (EOS), <|im_start|>, <|im_end|>; then the 256 bytes; then \
            pairs of lower-case letters, which merges make */

struct tiny {
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_context;
    float rope_base, norm_eps;
    bool tied;
    bool has_bias;          /* of q, k and v, ...                                 */
    float bias_spread;      /* ... about so large                                 */
    enum dtype dtype;       /* of the matrices                                    */
    enum dtype embed_dtype; /* of the embedding, and of the head if it has its own */
    uint32_t bad_from;      /* rows of the embedding from here on are not finite; 0: none */
    uint64_t seed;
};

/* 2 layers of 64 columns, 4 heads over 2, F32, tied. */
struct tiny tiny_default(void);

/* Parts of a file, for tests that leave one out or spoil it. */
void tiny_keys(struct gguf_out *o, const struct tiny *t);    /* architecture and its keys */
void tiny_vocab(struct gguf_out *o);                         /* tokenizer.ggml.*          */
void tiny_tensors(struct gguf_out *o, const struct tiny *t); /* random, by seed           */

/* All of it. The caller's to free. */
struct gguf_out *tiny_new(const struct tiny *t);

/* Converts a recorded checkpoint: FOLDER/config.json and FOLDER/model.safetensors, of the llama
 * family. NULL: they cannot be read. */
struct gguf_out *tiny_convert(const char *folder);

#endif
