/* Special tokens are few and begin with few different bytes: a bitmap of those lets the scan pass
 * over ordinary text, and a binary search in the vocabulary's sorted list, narrowed byte by byte,
 * finds the longest one at a place. So a text that consists of nothing but "<" costs no more than
 * any other. */
#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "client/text/bpe.h"
#include "client/text/pretokenize.h"
#include "shm/utf8.h"

enum { SCRATCH_KEPT = 1 << 16 }; /* symbols of a long word for which memory is kept */

struct cb_tokenizer {
    struct cb_vocab vocab;
    struct cb_splitter *splitter;
    /* [1]: all special tokens, [0]: only user-defined ones. Does one begin with this byte? */
    bool begins_special[2][256];
    bool any_special[2];
};

struct cb_tokenizer_scratch {
    struct cb_splitter_scan *scan;
    struct cb_bpe bpe;
};

int cb_tokenizer_new(struct cb_tokenizer **tokenizerp, const struct cb_vocab *vocab)
{
    struct cb_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->vocab = *vocab;
    for (uint32_t i = 0; i < vocab->n_specials; i++) {
        uint32_t id = vocab->special_ids[i], length;
        uint8_t first = *cb_vocab_bytes(vocab, id, &length);
        for (int all = vocab->types[id] == CB_TOKEN_CONTROL; all < 2; all++) {
            t->begins_special[all][first] = true;
            t->any_special[all] = true;
        }
    }
    int r = cb_splitter_new(&t->splitter, vocab->header->pre);
    if (r) {
        cb_tokenizer_free(t);
        return r;
    }
    *tokenizerp = t;
    return 0;
}

struct cb_tokenizer *cb_tokenizer_free(struct cb_tokenizer *t)
{
    if (t)
        cb_splitter_free(t->splitter);
    free(t);
    return NULL;
}

int cb_tokenizer_scratch_new(struct cb_tokenizer_scratch **scratchp, const struct cb_tokenizer *t)
{
    struct cb_tokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    if (!scratch)
        return -ENOMEM;
    int r = cb_splitter_scan_new(&scratch->scan, t->splitter);
    if (r) {
        cb_tokenizer_scratch_free(scratch);
        return r;
    }
    *scratchp = scratch;
    return 0;
}

struct cb_tokenizer_scratch *cb_tokenizer_scratch_free(struct cb_tokenizer_scratch *scratch)
{
    if (scratch) {
        cb_splitter_scan_free(scratch->scan);
        cb_bpe_fini(&scratch->bpe);
    }
    free(scratch);
    return NULL;
}

/* Byte `depth` of a special token; -1 past its end, so that the shorter sorts first. */
static int special_byte(const struct cb_vocab *vocab, uint32_t i, uint32_t depth)
{
    uint32_t length;
    const uint8_t *bytes = cb_vocab_bytes(vocab, vocab->special_ids[i], &length);
    return depth < length ? bytes[depth] : -1;
}

/* The first of specials [low, high), which agree up to depth, whose byte there is at least
 * `byte`. */
static uint32_t lower_bound(const struct cb_vocab *vocab, uint32_t low, uint32_t high,
                            uint32_t depth, int byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (special_byte(vocab, middle, depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest special token that text [n] begins with: its id, or CB_VOCAB_NONE. */
static uint32_t special_at(const struct cb_vocab *vocab, const uint8_t *text, size_t n, bool all,
                           uint32_t *length)
{
    uint32_t low = 0, high = vocab->n_specials, best = CB_VOCAB_NONE;
    for (uint32_t depth = 0; low < high; depth++) {
        for (; low < high && special_byte(vocab, low, depth) < 0; low++) {
            uint32_t id = vocab->special_ids[low];
            if (all || vocab->types[id] != CB_TOKEN_CONTROL) {
                best = id;
                *length = depth;
            }
        }
        if (depth == n)
            break;
        low = lower_bound(vocab, low, high, depth, text[depth]);
        high = lower_bound(vocab, low, high, depth, text[depth] + 1);
    }
    return best;
}

static int put_words(const struct cb_tokenizer *t, struct cb_tokenizer_scratch *scratch,
                     const uint8_t *text, size_t n, struct cb_ids *out)
{
    int r = 0;
    for (size_t at = 0, end; at < n && !r; at = end) {
        r = cb_splitter_next(t->splitter, scratch->scan, text, n, at, &end);
        if (!r)
            r = cb_bpe_word(&scratch->bpe, &t->vocab, text + at, end - at, out);
    }
    return r;
}

/* Below U+0300 every text is in form C already; its characters are encoded with lead bytes below
 * 0xCC. */
static bool may_change_in_nfc(const uint8_t *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] >= 0xcc)
            return true;
    }
    return false;
}

/* What lies between special tokens. */
static int put_plain(const struct cb_tokenizer *t, struct cb_tokenizer_scratch *scratch,
                     const uint8_t *text, size_t n, struct cb_ids *out)
{
    if (!(t->vocab.header->flags & CB_VOCAB_NFC) || !may_change_in_nfc(text, n))
        return put_words(t, scratch, text, n, out);

    utf8proc_uint8_t *composed;
    utf8proc_ssize_t n_composed =
        utf8proc_map(text, (utf8proc_ssize_t)n, &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n_composed < 0) /* the text is valid: it can only be memory */
        return -ENOMEM;
    int r = put_words(t, scratch, composed, (size_t)n_composed, out);
    free(composed);
    return r;
}

static int put_text(const struct cb_tokenizer *t, struct cb_tokenizer_scratch *scratch,
                    const uint8_t *text, size_t n, bool all, struct cb_ids *out)
{
    const bool *begins_special = t->begins_special[all];
    size_t plain = 0; /* not yet put, from here on */
    int r = 0;
    for (size_t at = 0; t->any_special[all] && at < n && !r;) {
        uint32_t length, id = CB_VOCAB_NONE;
        if (begins_special[text[at]])
            id = special_at(&t->vocab, text + at, n - at, all, &length);
        if (id == CB_VOCAB_NONE) {
            at++;
            continue;
        }
        r = put_plain(t, scratch, text + plain, at - plain, out);
        cb_ids_put(out, id);
        at += length;
        plain = at;
    }
    return r ? r : put_plain(t, scratch, text + plain, n - plain, out);
}

int cb_tokenizer_encode(const struct cb_tokenizer *t, struct cb_tokenizer_scratch *scratch,
                        const void *text, size_t n, uint32_t flags, uint32_t *ids, size_t capacity,
                        size_t *n_ids)
{
    struct cb_ids out = {ids, capacity, 0};
    uint32_t bos = t->vocab.header->bos;
    bool add_bos = (t->vocab.header->flags & CB_VOCAB_ADD_BOS) && bos != CB_VOCAB_NONE;

    *n_ids = 0;
    if (n > CB_TOKENIZE_TEXT_MAX)
        return -E2BIG;
    if ((flags & CB_TOKENIZE_BOS) && ((flags & CB_TOKENIZE_NO_BOS) || bos == CB_VOCAB_NONE))
        return -EINVAL;
    size_t n_valid = cb_utf8_valid(text, n);
    if (n_valid != n) {
        *n_ids = n_valid;
        return -EILSEQ;
    }

    if ((flags & CB_TOKENIZE_BOS) || (add_bos && !(flags & CB_TOKENIZE_NO_BOS)))
        cb_ids_put(&out, bos);
    int r = put_text(t, scratch, text, n, flags & CB_TOKENIZE_SPECIAL, &out);
    if (scratch->bpe.capacity > SCRATCH_KEPT)
        cb_bpe_fini(&scratch->bpe);
    if (r)
        return r;
    *n_ids = out.n;
    return out.n > capacity ? CB_TOKENIZE_ROOM : 0;
}
