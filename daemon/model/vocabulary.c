/* Lays a vocabulary out as one block, in the order of the parts, and fills the hash tables. The
 * result goes through the same check as in a client: what we publish is what a client accepts, or
 * an error here. */
#include "daemon/model/vocabulary.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct vocab_image {
    void *data;
    size_t bytes;
    struct cb_vocab view;
};

/* At least half of the slots stay empty. */
static uint32_t slots_for(uint32_t n)
{
    uint32_t slots = 2;
    while (slots < 2 * (uint64_t)n)
        slots *= 2;
    return slots;
}

static bool is_special(uint8_t type)
{
    return type == CB_TOKEN_CONTROL || type == CB_TOKEN_USER;
}

static uint32_t token_bytes(const struct vocab_spec *spec, uint32_t id)
{
    return spec->text_off[id + 1] - spec->text_off[id];
}

static int compare_tokens(const void *a, const void *b, void *ctx)
{
    const struct vocab_spec *spec = ctx;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    uint32_t nx = token_bytes(spec, x), ny = token_bytes(spec, y);
    int order =
        memcmp(spec->text + spec->text_off[x], spec->text + spec->text_off[y], nx < ny ? nx : ny);
    if (order == 0)
        order = nx < ny ? -1 : nx > ny;
    return order ? order : x < y ? -1 : x > y;
}

static void fill_specials(uint32_t *ids, uint32_t n_specials, const struct vocab_spec *spec)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        if (is_special(spec->types[i]) && token_bytes(spec, i) > 0)
            ids[n++] = i;
    }
    qsort_r(ids, n_specials, sizeof *ids, compare_tokens, (void *)spec);
}

/* Normal tokens go in first: they win over others of the same bytes, and merges are made of
 * them. */
static void fill_token_slots(uint32_t *slots, uint32_t n_slots, const struct vocab_spec *spec)
{
    memset(slots, 0xff, n_slots * sizeof *slots);
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t id = 0; id < spec->n_tokens; id++) {
            if ((spec->types[id] == CB_TOKEN_NORMAL) != (pass == 0))
                continue;
            const uint8_t *bytes = spec->text + spec->text_off[id];
            uint32_t n = token_bytes(spec, id), i = cb_vocab_bytes_hash(bytes, n);
            for (;; i++) {
                uint32_t *slot = &slots[i & (n_slots - 1)];
                if (*slot == CB_VOCAB_NONE) {
                    *slot = id;
                    break;
                }
                if (token_bytes(spec, *slot) == n &&
                    memcmp(spec->text + spec->text_off[*slot], bytes, n) == 0)
                    break;
            }
        }
    }
}

static void fill_merge_slots(uint32_t *slots, uint32_t n_slots, const struct vocab_spec *spec)
{
    memset(slots, 0xff, n_slots * sizeof *slots);
    for (uint32_t rank = 0; rank < spec->n_merges; rank++) {
        const struct cb_vocab_merge *m = &spec->merges[rank];
        for (uint32_t i = cb_vocab_pair_hash(m->left, m->right);; i++) {
            uint32_t *slot = &slots[i & (n_slots - 1)];
            if (*slot == CB_VOCAB_NONE) {
                *slot = rank;
                break;
            }
            if (spec->merges[*slot].left == m->left && spec->merges[*slot].right == m->right)
                break;
        }
    }
}

static bool spec_ok(const struct vocab_spec *spec)
{
    if (spec->n_tokens == 0 || spec->n_tokens > CB_VOCAB_TOKENS_MAX ||
        spec->n_merges > CB_VOCAB_MERGES_MAX || spec->template_bytes > CB_VOCAB_TEMPLATE_MAX ||
        spec->text_off[0] != 0)
        return false;
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        if (spec->text_off[i + 1] < spec->text_off[i] ||
            token_bytes(spec, i) > CB_VOCAB_TOKEN_BYTES_MAX)
            return false;
    }
    return true;
}

/* Everything of the header but byte_ids; returns the bytes of the whole image. */
static size_t lay_out(struct cb_vocab_header *h, const struct vocab_spec *spec)
{
    *h = (struct cb_vocab_header){
        .magic = CB_VOCAB_MAGIC,
        .version = CB_VOCAB_VERSION,
        .header_bytes = sizeof *h,
        .n_tokens = spec->n_tokens,
        .n_merges = spec->n_merges,
        .merge_slots = slots_for(spec->n_merges),
        .token_slots = slots_for(spec->n_tokens),
        .pre = spec->pre,
        .flags = spec->flags,
        .bos = spec->bos,
        .eos = spec->eos,
        .eot = spec->eot,
        .unk = spec->unk,
    };
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        uint32_t n = token_bytes(spec, i);
        if (n > h->token_bytes_max)
            h->token_bytes_max = n;
        h->n_specials += is_special(spec->types[i]) && n > 0;
    }
    size_t name_bytes = spec->name_bytes < CB_VOCAB_NAME_MAX ? spec->name_bytes : CB_VOCAB_NAME_MAX;
    const size_t bytes[CB_VOCAB_PARTS] = {
        [CB_VOCAB_TEXT_OFF] = ((size_t)spec->n_tokens + 1) * sizeof(uint32_t),
        [CB_VOCAB_TEXT] = spec->text_off[spec->n_tokens],
        [CB_VOCAB_TYPES] = spec->n_tokens,
        [CB_VOCAB_MERGES] = spec->n_merges * sizeof(struct cb_vocab_merge),
        [CB_VOCAB_MERGE_SLOTS] = h->merge_slots * sizeof(uint32_t),
        [CB_VOCAB_TOKEN_SLOTS] = h->token_slots * sizeof(uint32_t),
        [CB_VOCAB_SPECIALS] = h->n_specials * sizeof(uint32_t),
        [CB_VOCAB_TEMPLATE] = spec->template_bytes,
        [CB_VOCAB_NAME] = name_bytes,
    };
    size_t off = sizeof *h;
    for (int i = 0; i < CB_VOCAB_PARTS; i++) {
        h->parts[i] = (struct cb_vocab_part){.off = off, .bytes = bytes[i]};
        off = (off + bytes[i] + 7) & ~(size_t)7;
    }
    h->total_bytes = off;
    return off;
}

static void *part(struct vocab_image *image, enum cb_vocab_part_idx idx)
{
    const struct cb_vocab_header *h = image->data;
    return (char *)image->data + h->parts[idx].off;
}

static void put_part(struct vocab_image *image, enum cb_vocab_part_idx idx, const void *bytes)
{
    const struct cb_vocab_header *h = image->data;
    if (h->parts[idx].bytes > 0)
        memcpy(part(image, idx), bytes, h->parts[idx].bytes);
}

static void fill_byte_ids(struct vocab_image *image, const struct vocab_spec *spec)
{
    struct cb_vocab_header *h = image->data;
    memset(h->byte_ids, 0xff, sizeof h->byte_ids);
    for (uint32_t id = 0; id < spec->n_tokens; id++) {
        if (token_bytes(spec, id) != 1 || is_special(spec->types[id]))
            continue;
        uint32_t *slot = &h->byte_ids[spec->text[spec->text_off[id]]];
        if (*slot == CB_VOCAB_NONE)
            *slot = id;
    }
}

int vocab_image_new(struct vocab_image **imagep, const struct vocab_spec *spec)
{
    if (!spec_ok(spec))
        return -EINVAL;

    struct cb_vocab_header header;
    size_t bytes = lay_out(&header, spec);
    struct vocab_image *image = calloc(1, sizeof *image);
    if (image)
        image->data = calloc(1, bytes);
    if (!image || !image->data) {
        vocab_image_free(image);
        return -ENOMEM;
    }
    image->bytes = bytes;
    memcpy(image->data, &header, sizeof header);
    put_part(image, CB_VOCAB_TEXT_OFF, spec->text_off);
    put_part(image, CB_VOCAB_TEXT, spec->text);
    put_part(image, CB_VOCAB_TYPES, spec->types);
    put_part(image, CB_VOCAB_MERGES, spec->merges);
    put_part(image, CB_VOCAB_TEMPLATE, spec->chat_template);
    put_part(image, CB_VOCAB_NAME, spec->name);
    fill_merge_slots(part(image, CB_VOCAB_MERGE_SLOTS), header.merge_slots, spec);
    fill_token_slots(part(image, CB_VOCAB_TOKEN_SLOTS), header.token_slots, spec);
    fill_specials(part(image, CB_VOCAB_SPECIALS), header.n_specials, spec);
    fill_byte_ids(image, spec);

    if (cb_vocab_attach(&image->view, image->data, image->bytes)) {
        vocab_image_free(image);
        return -EINVAL;
    }
    *imagep = image;
    return 0;
}

/* " " and one syllable for each six bits, lowest first, as digits are written: no two numbers make
 * the same word. Returns its length. */
static uint32_t made_up_word(uint32_t number, uint8_t *word)
{
    static const char consonants[16] = "bdfghjklmnprstvz", vowels[4] = "aeio";
    uint32_t n = 0;
    word[n++] = ' ';
    do {
        word[n++] = (uint8_t)consonants[number >> 2 & 15];
        word[n++] = (uint8_t)vowels[number & 3];
        number >>= 6;
    } while (number > 0);
    return n;
}

enum { WORD_BYTES_MAX = 1 + 2 * 4 }; /* CB_VOCAB_TOKENS_MAX has 22 bits: four syllables */
static_assert(CB_VOCAB_TOKENS_MAX <= 1u << 24, "four syllables of six bits");

int vocab_image_null(struct vocab_image **imagep, uint32_t n_tokens)
{
    if (n_tokens == 0 || n_tokens > CB_VOCAB_TOKENS_MAX)
        return -EINVAL;

    uint32_t *text_off = malloc(((size_t)n_tokens + 1) * sizeof *text_off);
    uint8_t *text = malloc((size_t)n_tokens * WORD_BYTES_MAX);
    uint8_t *types = malloc(n_tokens);
    int r = -ENOMEM;
    if (text_off && text && types) {
        uint32_t n_bytes = n_tokens >= 512 ? 256 : 0;
        text_off[0] = 0;
        for (uint32_t id = 0; id < n_tokens; id++) {
            uint8_t *at = text + text_off[id];
            uint32_t n = 1;
            if (id < n_bytes)
                *at = (uint8_t)id;
            else
                n = made_up_word(id - n_bytes, at);
            text_off[id + 1] = text_off[id] + n;
        }
        memset(types, CB_TOKEN_NORMAL, n_tokens);
        r = vocab_image_new(imagep, &(struct vocab_spec){
                                        .n_tokens = n_tokens,
                                        .text_off = text_off,
                                        .text = text,
                                        .types = types,
                                        .pre = CB_PRE_GPT2,
                                        .bos = CB_VOCAB_NONE,
                                        .eos = CB_VOCAB_NONE,
                                        .eot = CB_VOCAB_NONE,
                                        .unk = CB_VOCAB_NONE,
                                        .name = "null",
                                        .name_bytes = 4,
                                    });
    }
    free(types);
    free(text);
    free(text_off);
    return r;
}

struct vocab_image *vocab_image_free(struct vocab_image *image)
{
    if (image)
        free(image->data);
    free(image);
    return NULL;
}

const void *vocab_image_data(const struct vocab_image *image)
{
    return image->data;
}

size_t vocab_image_bytes(const struct vocab_image *image)
{
    return image->bytes;
}

const struct cb_vocab *vocab_image_view(const struct vocab_image *image)
{
    return &image->view;
}
