/* GGUF keeps byte-level BPE as GPT-2's own files do: each byte of a normal token is written as a
 * printable character, and merges as two such strings. Here that is undone once, so that nobody
 * after us knows of it. Merges are resolved to ids with the very table that clients look tokens up
 * in: a first image is made without merges, asked, and thrown away. */
#include "daemon/model/vocabulary.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf.h"
#include "daemon/model/message.h"
#include "shm/utf8.h"

#define KEY "tokenizer.ggml."

struct draft {
    const struct gguf *g;
    char *message;
    struct vocab_spec spec;
    uint32_t *text_off;
    uint8_t *text;
    uint8_t *types;
    struct cb_vocab_merge *merges;
};

/* The byte that a character stands for, or -1. Printable Latin-1 stands for itself, the 68 other
 * bytes are U+0100 and on, in order. */
static int byte_of_character(uint32_t c)
{
    if ((c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c >= 0x100 && c <= 0x120)
        return (int)(c - 0x100);
    if (c >= 0x121 && c <= 0x142)
        return (int)(c - 0x121 + 0x7f);
    return c == 0x143 ? 0xad : -1;
}

/* Writes the bytes that s stands for, at most s.n; returns how many, or -1 if it is not so
 * written. */
static int64_t real_bytes(struct gguf_string s, uint8_t *out)
{
    const uint8_t *p = (const uint8_t *)s.data;
    int64_t n = 0;
    for (size_t at = 0; at < s.n;) {
        int length = cb_utf8_scan(p + at, s.n - at), byte = -1;
        if (length == 1)
            byte = byte_of_character(p[at]);
        else if (length == 2)
            byte = byte_of_character((p[at] & 0x1fu) << 6 | (p[at + 1] & 0x3fu));
        if (byte < 0)
            return -1;
        out[n++] = (uint8_t)byte;
        at += (size_t)length;
    }
    return n;
}

/* "<0x0A>": a byte token. */
static bool byte_token(struct gguf_string s, uint8_t *byte)
{
    char hex[3] = {0}, *end;
    if (s.n != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return false;
    memcpy(hex, s.data + 3, 2);
    *byte = (uint8_t)strtoul(hex, &end, 16);
    return end == hex + 2;
}

static int read_types(struct draft *d)
{
    struct gguf_array a;
    int r = gguf_array(d->g, KEY "token_type", GGUF_I32, &a, d->message);
    if (r < 0)
        return r;
    memset(d->types, CB_TOKEN_NORMAL, d->spec.n_tokens);
    if (r == GGUF_MISSING)
        return 0;
    if (a.n != d->spec.n_tokens)
        return model_refuse(d->message, -EINVAL,
                            "%s: " KEY "token_type has %" PRIu64 " elements for %" PRIu32 " tokens",
                            gguf_path(d->g), a.n, d->spec.n_tokens);
    for (uint32_t i = 0; i < d->spec.n_tokens; i++) {
        int32_t type = gguf_array_i32(&a, i);
        if (type < CB_TOKEN_NORMAL || type > CB_TOKEN_BYTE)
            return model_refuse(d->message, -EINVAL,
                                "%s: " KEY "token_type: token %" PRIu32 " has type %" PRId32
                                "; types are 1 to 6",
                                gguf_path(d->g), i, type);
        d->types[i] = (uint8_t)type;
    }
    return 0;
}

/* Normal tokens are undone; control and user-defined ones are plain text already, as is a token
 * that has a character which stands for no byte (padding of some vocabularies). */
static uint32_t put_token(uint8_t *out, struct gguf_string s, uint8_t type)
{
    if (type == CB_TOKEN_BYTE && byte_token(s, out))
        return 1;
    if (type == CB_TOKEN_NORMAL || type == CB_TOKEN_UNUSED) {
        int64_t n = real_bytes(s, out);
        if (n >= 0)
            return (uint32_t)n;
    }
    memcpy(out, s.data, s.n);
    return (uint32_t)s.n;
}

static int read_tokens(struct draft *d)
{
    struct gguf_array a;
    int r = gguf_array(d->g, KEY "tokens", GGUF_STRING, &a, d->message);
    if (r < 0)
        return r;
    if (r == GGUF_MISSING || a.n == 0)
        return model_refuse(d->message, -EINVAL,
                            "%s: no tokenizer: " KEY
                            "tokens is missing or empty; the file must hold "
                            "its vocabulary",
                            gguf_path(d->g));
    if (a.n > CB_VOCAB_TOKENS_MAX || a.bytes > UINT32_MAX)
        return model_refuse(d->message, -EINVAL,
                            "%s: " KEY "tokens has %" PRIu64
                            " tokens in %zu bytes; at most %u are served",
                            gguf_path(d->g), a.n, a.bytes, CB_VOCAB_TOKENS_MAX);

    d->spec.n_tokens = (uint32_t)a.n;
    d->text_off = malloc((a.n + 1) * sizeof *d->text_off);
    d->types = malloc(a.n);
    d->text = malloc(a.bytes ? a.bytes : 1);
    if (!d->text_off || !d->types || !d->text)
        return model_refuse(d->message, -ENOMEM, "%s: no memory for the vocabulary",
                            gguf_path(d->g));
    r = read_types(d);
    if (r)
        return r;

    struct gguf_walk walk = gguf_walk(&a);
    struct gguf_string s;
    d->text_off[0] = 0;
    for (uint32_t i = 0; gguf_walk_next(&walk, &s); i++) {
        if (s.n > CB_VOCAB_TOKEN_BYTES_MAX)
            return model_refuse(d->message, -EINVAL,
                                "%s: " KEY "tokens: token %" PRIu32
                                " has %zu bytes; at most %d are served",
                                gguf_path(d->g), i, s.n, CB_VOCAB_TOKEN_BYTES_MAX);
        d->text_off[i + 1] = d->text_off[i] + put_token(d->text + d->text_off[i], s, d->types[i]);
    }
    d->spec.text_off = d->text_off;
    d->spec.text = d->text;
    d->spec.types = d->types;
    return 0;
}

/* One "left right" of the file. False: it is not two tokens, or together they are none. */
static bool resolve_merge(const struct cb_vocab *vocab, struct gguf_string s,
                          struct cb_vocab_merge *m)
{
    uint8_t bytes[2 * CB_VOCAB_TOKEN_BYTES_MAX];
    const char *space = s.n > 0 && s.n <= sizeof bytes ? memchr(s.data, ' ', s.n) : NULL;
    if (!space)
        return false;
    struct gguf_string left = {s.data, (size_t)(space - s.data)};
    struct gguf_string right = {space + 1, s.n - left.n - 1};
    int64_t n_left = real_bytes(left, bytes);
    int64_t n_right = n_left > 0 ? real_bytes(right, bytes + n_left) : -1;
    if (n_right <= 0)
        return false;
    m->left = cb_vocab_find(vocab, bytes, (size_t)n_left);
    m->right = cb_vocab_find(vocab, bytes + n_left, (size_t)n_right);
    m->result = cb_vocab_find(vocab, bytes, (size_t)(n_left + n_right));
    return m->left != CB_VOCAB_NONE && m->right != CB_VOCAB_NONE && m->result != CB_VOCAB_NONE;
}

static int read_merges(struct draft *d)
{
    struct gguf_array a;
    int r = gguf_array(d->g, KEY "merges", GGUF_STRING, &a, d->message);
    if (r < 0)
        return r;
    if (r == GGUF_MISSING)
        return model_refuse(d->message, -EINVAL, "%s: no tokenizer: " KEY "merges is missing",
                            gguf_path(d->g));
    if (a.n > CB_VOCAB_MERGES_MAX)
        return model_refuse(d->message, -EINVAL,
                            "%s: " KEY "merges has %" PRIu64 " elements; at most %u are served",
                            gguf_path(d->g), a.n, CB_VOCAB_MERGES_MAX);

    struct vocab_image *tokens;
    d->merges = malloc(a.n ? a.n * sizeof *d->merges : 1);
    r = d->merges ? vocab_image_new(&tokens, &d->spec) : -ENOMEM;
    if (r)
        return model_refuse(d->message, r, "%s: cannot lay out the vocabulary: %s", gguf_path(d->g),
                            strerror(-r));
    struct gguf_walk walk = gguf_walk(&a);
    struct gguf_string s;
    uint32_t n = 0;
    while (gguf_walk_next(&walk, &s)) {
        if (!resolve_merge(vocab_image_view(tokens), s, &d->merges[n])) {
            vocab_image_free(tokens);
            return model_refuse(d->message, -EINVAL,
                                "%s: " KEY "merges: element %" PRIu32
                                " (\"%.*s\") does not join two tokens "
                                "to a third",
                                gguf_path(d->g), n, (int)(s.n < 64 ? s.n : 64), s.data);
        }
        n++;
    }
    vocab_image_free(tokens);
    d->spec.merges = d->merges;
    d->spec.n_merges = n;
    return 0;
}

static int read_id(struct draft *d, const char *key, uint32_t *idp)
{
    *idp = CB_VOCAB_NONE;
    int r = gguf_u32(d->g, key, idp, d->message);
    if (r < 0)
        return r;
    if (*idp != CB_VOCAB_NONE && *idp >= d->spec.n_tokens)
        return model_refuse(d->message, -EINVAL,
                            "%s: %s is %" PRIu32 ", but there are only %" PRIu32 " tokens",
                            gguf_path(d->g), key, *idp, d->spec.n_tokens);
    return 0;
}

static bool is(struct gguf_string s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.data, word, s.n) == 0;
}

static int read_kind(struct draft *d)
{
    static const struct {
        const char *name;
        enum cb_vocab_pre pre;
        uint32_t flags;
    } kinds[] = {
        {"gpt-2", CB_PRE_GPT2, 0},
        {"smollm", CB_PRE_SMOLLM, 0},
        {"llama-bpe", CB_PRE_LLAMA3, CB_VOCAB_IGNORE_MERGES | CB_VOCAB_ADD_BOS},
        {"qwen2", CB_PRE_QWEN2, CB_VOCAB_NFC},
    };
    struct gguf_string model = {"", 0}, pre = {"", 0};
    int r = gguf_string(d->g, KEY "model", &model, d->message);
    if (r >= 0)
        r = gguf_string(d->g, KEY "pre", &pre, d->message);
    if (r < 0)
        return r;
    if (!is(model, "gpt2"))
        return model_refuse(d->message, -ENOTSUP,
                            "%s: " KEY "model is \"%.*s\"; served is \"gpt2\" (byte-level BPE)",
                            gguf_path(d->g), (int)(model.n < 64 ? model.n : 64), model.data);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (is(pre, kinds[i].name)) {
            d->spec.pre = kinds[i].pre;
            d->spec.flags = kinds[i].flags;
            return 0;
        }
    }
    return model_refuse(d->message, -ENOTSUP,
                        "%s: " KEY "pre is \"%.*s\"; served are gpt-2, smollm, llama-bpe and qwen2",
                        gguf_path(d->g), (int)(pre.n < 64 ? pre.n : 64), pre.data);
}

/* The kind says whether there is a BOS in front; the file's own word overrides it. */
static int read_bos_rule(struct draft *d)
{
    bool add_bos = d->spec.flags & CB_VOCAB_ADD_BOS;
    int r = gguf_bool(d->g, KEY "add_bos_token", &add_bos, d->message);
    if (r < 0)
        return r;
    if (add_bos && d->spec.bos == CB_VOCAB_NONE)
        return model_refuse(d->message, -EINVAL,
                            "%s: text begins with BOS, but there is no " KEY "bos_token_id",
                            gguf_path(d->g));
    d->spec.flags &= ~(uint32_t)CB_VOCAB_ADD_BOS;
    if (add_bos)
        d->spec.flags |= CB_VOCAB_ADD_BOS;
    return 0;
}

static int read_texts(struct draft *d)
{
    struct gguf_string template = {NULL, 0}, name = {NULL, 0};
    int r = gguf_string(d->g, "tokenizer.chat_template", &template, d->message);
    if (r >= 0)
        r = gguf_string(d->g, "general.name", &name, d->message);
    if (r < 0)
        return r;
    if (template.n > CB_VOCAB_TEMPLATE_MAX)
        return model_refuse(d->message, -EINVAL,
                            "%s: tokenizer.chat_template has %zu bytes; at most %u are served",
                            gguf_path(d->g), template.n, CB_VOCAB_TEMPLATE_MAX);
    d->spec.chat_template = template.data;
    d->spec.template_bytes = template.n;
    d->spec.name = name.data;
    d->spec.name_bytes = name.n;
    return 0;
}

static int read_all(struct draft *d)
{
    int r = read_kind(d);
    if (!r)
        r = read_tokens(d);
    if (!r)
        r = read_id(d, KEY "bos_token_id", &d->spec.bos);
    if (!r)
        r = read_id(d, KEY "eos_token_id", &d->spec.eos);
    if (!r)
        r = read_id(d, KEY "eot_token_id", &d->spec.eot);
    if (!r)
        r = read_id(d, KEY "unknown_token_id", &d->spec.unk);
    if (!r)
        r = read_bos_rule(d);
    if (!r)
        r = read_merges(d);
    return r ? r : read_texts(d);
}

int vocab_image_from_gguf(struct vocab_image **imagep, const struct gguf *g, char *message)
{
    struct draft d = {.g = g, .message = message};
    int r = read_all(&d);
    if (!r) {
        r = vocab_image_new(imagep, &d.spec);
        if (r)
            model_refuse(message, r, "%s: cannot lay out the vocabulary: %s", gguf_path(g),
                         strerror(-r));
    }
    free(d.merges);
    free(d.types);
    free(d.text);
    free(d.text_off);
    return r;
}
