/* shm/vocab.h - the published vocabulary (the VOCAB segment), format 1, and its reader.
 *
 * VOCAB is all that a client needs to make ids of text and text of ids: it opens no model file. The
 * daemon writes it once (daemon/model/vocabulary.h), seals it against every change, and gives each
 * client a read-only descriptor. Everything that takes time is in it ready-made: bytes instead of
 * printable stand-ins, merges as ids, hash tables. A client maps it, checks it once
 * (cb_vocab_attach), and begins.
 *
 *     offset 0     struct cb_vocab_header: magic, version, lengths, scalars, parts, byte_ids
 *                  the parts, in any order, each at parts[x].off (a multiple of 8), of
 *                  parts[x].bytes bytes:
 *     TEXT_OFF     u32 [n_tokens + 1]        token i is TEXT[TEXT_OFF[i] .. TEXT_OFF[i + 1])
 *     TEXT         u8 [TEXT_OFF[n_tokens]]   the real bytes of all tokens, one after another
 *     TYPES        u8 [n_tokens]             enum cb_token_type
 *     MERGES       struct cb_vocab_merge [n_merges]; the index is the rank, the lowest merges first
 *     MERGE_SLOTS  u32 [merge_slots]         (left, right) -> index in MERGES
 *     TOKEN_SLOTS  u32 [token_slots]         bytes -> id
 *     SPECIALS     u32 [n_specials]          ids of control and user-defined tokens, sorted by
 *                                            their bytes
 *     TEMPLATE     u8                        chat template as in the model file, or nothing
 *     NAME         u8                        the model's name, UTF-8
 *
 * Little-endian, offsets from the segment's beginning, no pointers. The hash tables are
 * open-addressed with linear probing, a power of two in size and at least half empty; an empty slot
 * is CB_VOCAB_NONE. The probe begins at cb_vocab_pair_hash() or cb_vocab_bytes_hash(), whose
 * definition is part of the format. If several tokens have the same bytes, TOKEN_SLOTS has the
 * lowest normal one, or else the lowest.
 *
 * Nothing is written after sealing, so any number of threads may read. */
#ifndef CB_SHM_VOCAB_H
#define CB_SHM_VOCAB_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define CB_VOCAB_MAGIC           UINT64_C(0x31424143564243) /* "CBVCAB1" and a 0 */
#define CB_VOCAB_VERSION         1
#define CB_VOCAB_NONE            UINT32_MAX /* no id, no rank, empty slot */
#define CB_VOCAB_TOKENS_MAX      (1u << 22)
#define CB_VOCAB_MERGES_MAX      (1u << 22)
#define CB_VOCAB_TOKEN_BYTES_MAX 4096       /* of one token */
#define CB_VOCAB_TEMPLATE_MAX    (1u << 20) /* bytes        */
#define CB_VOCAB_NAME_MAX        256        /* bytes        */

/* The numbers that GGUF files use. */
enum cb_token_type {
    CB_TOKEN_NORMAL = 1,
    CB_TOKEN_UNKNOWN = 2,
    CB_TOKEN_CONTROL = 3, /* steers the model, is no text; found in text only when asked */
    CB_TOKEN_USER = 4,    /* user-defined: text, and found in text before anything else  */
    CB_TOKEN_UNUSED = 5,
    CB_TOKEN_BYTE = 6,
};

/* How text is cut into words before merging. */
enum cb_vocab_pre {
    CB_PRE_GPT2 = 1,
    CB_PRE_SMOLLM = 2,
    CB_PRE_LLAMA3 = 3,
    CB_PRE_QWEN2 = 4,
};

enum cb_vocab_flag {
    CB_VOCAB_ADD_BOS = 1u << 0,       /* text gets BOS in front unless the caller says otherwise */
    CB_VOCAB_IGNORE_MERGES = 1u << 1, /* a word that is a token is that token, merges or not     */
    CB_VOCAB_NFC = 1u << 2,           /* text is brought into normalisation form C first         */
};

enum cb_vocab_part_idx {
    CB_VOCAB_TEXT_OFF,
    CB_VOCAB_TEXT,
    CB_VOCAB_TYPES,
    CB_VOCAB_MERGES,
    CB_VOCAB_MERGE_SLOTS,
    CB_VOCAB_TOKEN_SLOTS,
    CB_VOCAB_SPECIALS,
    CB_VOCAB_TEMPLATE,
    CB_VOCAB_NAME,
    CB_VOCAB_PARTS,
};

struct cb_vocab_part {
    uint64_t off;
    uint64_t bytes;
};

/* Ids; the bytes of result are those of left, then those of right. */
struct cb_vocab_merge {
    uint32_t left, right, result;
};

struct cb_vocab_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes; /* sizeof(struct cb_vocab_header) */
    uint64_t total_bytes;  /* of all that is used of the segment */
    uint32_t n_tokens;
    uint32_t n_merges;
    uint32_t n_specials;
    uint32_t merge_slots; /* powers of two */
    uint32_t token_slots;
    uint32_t token_bytes_max;    /* of the longest token */
    uint32_t pre;                /* enum cb_vocab_pre */
    uint32_t flags;              /* enum cb_vocab_flag */
    uint32_t bos, eos, eot, unk; /* ids, or CB_VOCAB_NONE */
    uint32_t reserved[2];        /* 0 */
    struct cb_vocab_part parts[CB_VOCAB_PARTS];
    uint32_t byte_ids[256]; /* the token that is this byte alone, or CB_VOCAB_NONE */
};
static_assert(offsetof(struct cb_vocab_header, total_bytes) == 16, "format 1");
static_assert(offsetof(struct cb_vocab_header, pre) == 48, "format 1");
static_assert(offsetof(struct cb_vocab_header, bos) == 56, "format 1");
static_assert(offsetof(struct cb_vocab_header, parts) == 80, "format 1");
static_assert(offsetof(struct cb_vocab_header, byte_ids) == 224, "format 1");
static_assert(sizeof(struct cb_vocab_header) == 1248, "format 1");
static_assert(sizeof(struct cb_vocab_merge) == 12, "format 1");

/* A checked vocabulary: where things lie in this process. Fields may be read by anyone; they and
 * the segment stay as they are until the segment is unmapped. */
struct cb_vocab {
    const struct cb_vocab_header *header;
    const uint32_t *text_off;
    const uint8_t *text;
    const uint8_t *types;
    const struct cb_vocab_merge *merges;
    const uint32_t *merge_slot_ids;
    const uint32_t *token_slot_ids;
    const uint32_t *special_ids;
    const char *chat_template; /* not 0-terminated */
    const char *name;          /* not 0-terminated */
    uint32_t n_tokens, n_specials, merge_mask, token_mask;
    uint32_t template_bytes, name_bytes;
};

/* Checks base [bytes] and fills *vocab. base must be aligned to 8 and must not change from here on
 * (it is sealed, or private memory); what it holds may be anything. After 0 every function below
 * and every index found in the segment is safe to follow. One pass, under 10 ms for 150,000 tokens.
 *   -EBADMSG          not a vocabulary, or a broken one; *vocab is unchanged
 *   -EPROTONOSUPPORT  of another version */
int cb_vocab_attach(struct cb_vocab *vocab, const void *base, size_t bytes);

/* The token with exactly these bytes, or CB_VOCAB_NONE. */
uint32_t cb_vocab_find(const struct cb_vocab *vocab, const void *bytes, size_t n);

/* Fowler-Noll-Vo 1a, 64 bits, its halves folded together by exclusive or; modulo the number of
 * slots. */
uint32_t cb_vocab_bytes_hash(const void *bytes, size_t n);

/* Fibonacci hashing; modulo the number of slots. */
static inline uint32_t cb_vocab_pair_hash(uint32_t left, uint32_t right)
{
    return (uint32_t)(((uint64_t)left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
}

/* The rank (index in merges) of the merge of these two, or CB_VOCAB_NONE. */
static inline uint32_t cb_vocab_merge_rank(const struct cb_vocab *vocab, uint32_t left,
                                           uint32_t right)
{
    for (uint32_t i = cb_vocab_pair_hash(left, right);; i++) {
        uint32_t rank = vocab->merge_slot_ids[i & vocab->merge_mask];
        if (rank == CB_VOCAB_NONE)
            return CB_VOCAB_NONE;
        if (vocab->merges[rank].left == left && vocab->merges[rank].right == right)
            return rank;
    }
}

/* The bytes of a token as the model file has them, control tokens too. id < n_tokens. */
static inline const uint8_t *cb_vocab_bytes(const struct cb_vocab *vocab, uint32_t id, uint32_t *n)
{
    *n = vocab->text_off[id + 1] - vocab->text_off[id];
    return vocab->text + vocab->text_off[id];
}

/* What a generated token adds to the text: its bytes, but nothing for control and unknown tokens.
 * This is what stop strings are matched on, in the daemon and in the library. id < n_tokens. */
static inline const uint8_t *cb_vocab_text(const struct cb_vocab *vocab, uint32_t id, uint32_t *n)
{
    const uint8_t *bytes = cb_vocab_bytes(vocab, id, n);
    if (vocab->types[id] == CB_TOKEN_CONTROL || vocab->types[id] == CB_TOKEN_UNKNOWN)
        *n = 0;
    return bytes;
}

#endif
