/* Nearly all words have a handful of bytes: for them the symbols and the ranks of their pairs lie
 * in two small arrays, and looking for the lowest rank is a scan. A long word (a line of dashes,
 * base64, a megabyte of one letter) would make that quadratic, so it gets a linked list and a heap
 * of (rank, position). Heap entries are never taken back: one whose pair has changed meanwhile is
 * recognised when it comes up, for its two symbols are no longer those of the merge. Each merge
 * pops one entry and pushes two at most, so the heap never holds more than twice the symbols. */
#include "client/text/bpe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT_WORD = 48 };

struct cb_bpe_symbol {
    uint32_t id; /* CB_VOCAB_NONE: merged into the one before */
    uint32_t before, after;
};

void cb_bpe_fini(struct cb_bpe *bpe)
{
    free(bpe->symbols);
    free(bpe->heap);
    *bpe = (struct cb_bpe){0};
}

static uint32_t pair_rank(const struct cb_vocab *vocab, const uint32_t *ids, uint32_t i, uint32_t n)
{
    return i + 1 < n ? cb_vocab_merge_rank(vocab, ids[i], ids[i + 1]) : CB_VOCAB_NONE;
}

static void merge_short(const struct cb_vocab *vocab, const uint8_t *word, size_t n_bytes,
                        struct cb_ids *out)
{
    uint32_t ids[SHORT_WORD], ranks[SHORT_WORD], n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        ids[n] = vocab->header->byte_ids[word[i]];
        n += ids[n] != CB_VOCAB_NONE;
    }
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = pair_rank(vocab, ids, i, n);
    for (;;) {
        uint32_t lowest = CB_VOCAB_NONE, at = 0;
        for (uint32_t i = 0; i + 1 < n; i++) {
            if (ranks[i] < lowest) {
                lowest = ranks[i];
                at = i;
            }
        }
        if (lowest == CB_VOCAB_NONE)
            break;
        ids[at] = vocab->merges[lowest].result;
        n--;
        memmove(ids + at + 1, ids + at + 2, (n - at - 1) * sizeof *ids);
        memmove(ranks + at + 1, ranks + at + 2, (n - at - 1) * sizeof *ranks);
        ranks[at] = pair_rank(vocab, ids, at, n);
        if (at > 0)
            ranks[at - 1] = pair_rank(vocab, ids, at - 1, n);
    }
    for (uint32_t i = 0; i < n; i++)
        cb_ids_put(out, ids[i]);
}

static int reserve(struct cb_bpe *bpe, size_t n)
{
    if (n <= bpe->capacity)
        return 0;
    cb_bpe_fini(bpe);
    size_t capacity = n + n / 2;
    bpe->symbols = malloc(capacity * sizeof *bpe->symbols);
    bpe->heap = malloc(2 * capacity * sizeof *bpe->heap);
    if (!bpe->symbols || !bpe->heap) {
        cb_bpe_fini(bpe);
        return -ENOMEM;
    }
    bpe->capacity = capacity;
    return 0;
}

static void heap_push(uint64_t *heap, size_t *np, uint64_t key)
{
    size_t i = (*np)++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
}

static uint64_t heap_pop(uint64_t *heap, size_t *np)
{
    uint64_t top = heap[0], key = heap[--*np];
    size_t n = *np, i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
    return top;
}

/* Offers the pair that begins with symbol i, if it is one and merges. */
static void offer(const struct cb_vocab *vocab, struct cb_bpe *bpe, size_t *n_heap, uint32_t i)
{
    if (i == CB_VOCAB_NONE || bpe->symbols[i].after == CB_VOCAB_NONE)
        return;
    uint32_t rank =
        cb_vocab_merge_rank(vocab, bpe->symbols[i].id, bpe->symbols[bpe->symbols[i].after].id);
    if (rank != CB_VOCAB_NONE)
        heap_push(bpe->heap, n_heap, (uint64_t)rank << 32 | i);
}

static void merge_long(struct cb_bpe *bpe, const struct cb_vocab *vocab, const uint8_t *word,
                       size_t n_bytes, struct cb_ids *out)
{
    struct cb_bpe_symbol *symbols = bpe->symbols;
    uint32_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t id = vocab->header->byte_ids[word[i]];
        if (id == CB_VOCAB_NONE)
            continue;
        symbols[n] = (struct cb_bpe_symbol){id, n - 1, n + 1}; /* before the first: CB_VOCAB_NONE */
        n++;
    }
    if (n == 0)
        return;
    symbols[n - 1].after = CB_VOCAB_NONE;

    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        offer(vocab, bpe, &n_heap, i);
    while (n_heap > 0) {
        uint64_t key = heap_pop(bpe->heap, &n_heap);
        const struct cb_vocab_merge *merge = &vocab->merges[key >> 32];
        uint32_t i = (uint32_t)key, next = symbols[i].after;
        if (symbols[i].id != merge->left || next == CB_VOCAB_NONE ||
            symbols[next].id != merge->right)
            continue;
        symbols[i].id = merge->result;
        symbols[i].after = symbols[next].after;
        if (symbols[i].after != CB_VOCAB_NONE)
            symbols[symbols[i].after].before = i;
        symbols[next].id = CB_VOCAB_NONE;
        offer(vocab, bpe, &n_heap, symbols[i].before);
        offer(vocab, bpe, &n_heap, i);
    }
    for (uint32_t i = 0; i != CB_VOCAB_NONE; i = symbols[i].after)
        cb_ids_put(out, symbols[i].id);
}

int cb_bpe_word(struct cb_bpe *bpe, const struct cb_vocab *vocab, const uint8_t *word, size_t n,
                struct cb_ids *out)
{
    if (vocab->header->flags & CB_VOCAB_IGNORE_MERGES) {
        uint32_t id = cb_vocab_find(vocab, word, n);
        /* Never a control token: text does not steer the model unless the caller asked for that. */
        if (id != CB_VOCAB_NONE && vocab->types[id] == CB_TOKEN_NORMAL) {
            cb_ids_put(out, id);
            return 0;
        }
    }
    if (n <= SHORT_WORD) {
        merge_short(vocab, word, n, out);
        return 0;
    }
    int r = reserve(bpe, n);
    if (!r)
        merge_long(bpe, vocab, word, n, out);
    return r;
}
