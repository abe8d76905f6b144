/* The reader trusts nothing it has not looked at: every offset, id and rank in the segment is
 * compared with its bound once, in attach, so that lookups need no checks of their own. Probing
 * ends because attach counts the empty slots: at least one. What is only wrong but not dangerous (a
 * hash table that misses an entry, specials out of order) is the daemon's affair and not looked
 * for. */
#include "shm/vocab.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

uint32_t cb_vocab_bytes_hash(const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return (uint32_t)(h ^ h >> 32);
}

static bool id_ok(uint32_t id, uint32_t n_tokens)
{
    return id < n_tokens || id == CB_VOCAB_NONE;
}

static bool slots_ok(const uint32_t *slots, uint32_t n_slots, uint32_t n_values)
{
    uint32_t n_used = 0;
    bool ok = true;
    for (uint32_t i = 0; i < n_slots; i++) {
        ok &= id_ok(slots[i], n_values);
        n_used += slots[i] != CB_VOCAB_NONE;
    }
    return ok && n_used <= n_slots / 2;
}

static bool scalars_ok(const struct cb_vocab_header *h, size_t bytes)
{
    return h->header_bytes == sizeof *h && h->total_bytes >= sizeof *h && h->total_bytes <= bytes &&
           h->n_tokens >= 1 && h->n_tokens <= CB_VOCAB_TOKENS_MAX &&
           h->n_merges <= CB_VOCAB_MERGES_MAX && h->n_specials <= h->n_tokens &&
           h->merge_slots >= 2 && (h->merge_slots & (h->merge_slots - 1)) == 0 &&
           h->token_slots >= 2 && (h->token_slots & (h->token_slots - 1)) == 0 &&
           h->token_bytes_max <= CB_VOCAB_TOKEN_BYTES_MAX && id_ok(h->bos, h->n_tokens) &&
           id_ok(h->eos, h->n_tokens) && id_ok(h->eot, h->n_tokens) && id_ok(h->unk, h->n_tokens);
}

static bool parts_ok(const struct cb_vocab_header *h)
{
    const uint64_t any = UINT64_MAX;
    const uint64_t expect[CB_VOCAB_PARTS] = {
        [CB_VOCAB_TEXT_OFF] = ((uint64_t)h->n_tokens + 1) * sizeof(uint32_t),
        [CB_VOCAB_TEXT] = any,
        [CB_VOCAB_TYPES] = h->n_tokens,
        [CB_VOCAB_MERGES] = (uint64_t)h->n_merges * sizeof(struct cb_vocab_merge),
        [CB_VOCAB_MERGE_SLOTS] = (uint64_t)h->merge_slots * sizeof(uint32_t),
        [CB_VOCAB_TOKEN_SLOTS] = (uint64_t)h->token_slots * sizeof(uint32_t),
        [CB_VOCAB_SPECIALS] = (uint64_t)h->n_specials * sizeof(uint32_t),
        [CB_VOCAB_TEMPLATE] = any,
        [CB_VOCAB_NAME] = any,
    };
    for (int i = 0; i < CB_VOCAB_PARTS; i++) {
        const struct cb_vocab_part *part = &h->parts[i];
        if (part->off % 8 != 0 || part->off > h->total_bytes ||
            part->bytes > h->total_bytes - part->off ||
            (expect[i] != any && part->bytes != expect[i]))
            return false;
    }
    return h->parts[CB_VOCAB_TEXT].bytes <= UINT32_MAX &&
           h->parts[CB_VOCAB_TEMPLATE].bytes <= CB_VOCAB_TEMPLATE_MAX &&
           h->parts[CB_VOCAB_NAME].bytes <= CB_VOCAB_NAME_MAX;
}

static bool tokens_ok(const struct cb_vocab *v)
{
    const struct cb_vocab_header *h = v->header;
    bool ok = v->text_off[0] == 0 && v->text_off[h->n_tokens] == h->parts[CB_VOCAB_TEXT].bytes;
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        /* Compared, not only subtracted: a million long tokens can wrap 32 bits and come back. */
        ok &= v->text_off[i + 1] >= v->text_off[i];
        ok &= v->text_off[i + 1] - v->text_off[i] <= h->token_bytes_max;
        ok &= v->types[i] >= CB_TOKEN_NORMAL && v->types[i] <= CB_TOKEN_BYTE;
    }
    for (int i = 0; i < 256; i++)
        ok &= id_ok(h->byte_ids[i], h->n_tokens);
    for (uint32_t i = 0; ok && i < h->n_specials; i++) {
        uint32_t id = v->special_ids[i];
        /* An empty special token would be found everywhere, for ever. */
        ok &= id < h->n_tokens && v->text_off[id + 1] > v->text_off[id];
    }
    return ok;
}

static bool merges_ok(const struct cb_vocab *v)
{
    uint32_t n = v->header->n_tokens;
    bool ok = true;
    for (uint32_t i = 0; i < v->header->n_merges; i++) {
        const struct cb_vocab_merge *m = &v->merges[i];
        ok &= m->left < n && m->right < n && m->result < n;
    }
    return ok;
}

int cb_vocab_attach(struct cb_vocab *vocab, const void *base, size_t bytes)
{
    const struct cb_vocab_header *h = base;
    if ((uintptr_t)base % 8 != 0 || bytes < sizeof *h || h->magic != CB_VOCAB_MAGIC)
        return -EBADMSG;
    if (h->version != CB_VOCAB_VERSION)
        return -EPROTONOSUPPORT;
    if (!scalars_ok(h, bytes) || !parts_ok(h))
        return -EBADMSG;

    const void *at[CB_VOCAB_PARTS];
    for (int i = 0; i < CB_VOCAB_PARTS; i++)
        at[i] = (const char *)base + h->parts[i].off;
    struct cb_vocab v = {
        .header = h,
        .text_off = at[CB_VOCAB_TEXT_OFF],
        .text = at[CB_VOCAB_TEXT],
        .types = at[CB_VOCAB_TYPES],
        .merges = at[CB_VOCAB_MERGES],
        .merge_slot_ids = at[CB_VOCAB_MERGE_SLOTS],
        .token_slot_ids = at[CB_VOCAB_TOKEN_SLOTS],
        .special_ids = at[CB_VOCAB_SPECIALS],
        .chat_template = at[CB_VOCAB_TEMPLATE],
        .name = at[CB_VOCAB_NAME],
        .n_tokens = h->n_tokens,
        .n_specials = h->n_specials,
        .merge_mask = h->merge_slots - 1,
        .token_mask = h->token_slots - 1,
        .template_bytes = (uint32_t)h->parts[CB_VOCAB_TEMPLATE].bytes,
        .name_bytes = (uint32_t)h->parts[CB_VOCAB_NAME].bytes,
    };
    if (!tokens_ok(&v) || !merges_ok(&v) ||
        !slots_ok(v.merge_slot_ids, h->merge_slots, h->n_merges) ||
        !slots_ok(v.token_slot_ids, h->token_slots, h->n_tokens))
        return -EBADMSG;
    *vocab = v;
    return 0;
}

uint32_t cb_vocab_find(const struct cb_vocab *vocab, const void *bytes, size_t n)
{
    for (uint32_t i = cb_vocab_bytes_hash(bytes, n);; i++) {
        uint32_t id = vocab->token_slot_ids[i & vocab->token_mask], length;
        if (id == CB_VOCAB_NONE)
            return CB_VOCAB_NONE;
        const uint8_t *token = cb_vocab_bytes(vocab, id, &length);
        if (length == n && memcmp(token, bytes, n) == 0)
            return id;
    }
}
