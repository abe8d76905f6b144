/* client/words.c - text to ids, ids to text, chats: apart from requests.
 *
 * One tokenizer a handle, made at its first use (compiling its pattern takes milliseconds that a
 * client of ids never pays). Threads share it; the memory it works in is borrowed for a call, and
 * one is kept for the next. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/grow.h"
#include "client/text/chat.h"
#include "client/text/tokenizer.h"

static_assert(CB_NO_TOKEN == CB_VOCAB_NONE, "cbclient.h spells vocab.h out");

/* ---- text to ids ----------------------------------------------------------------------------- */

/* The handle's tokenizer, made at its first use, and a scratch for this call. */
static int borrow_scratch(struct cb_handle *h, struct cb_tokenizer_scratch **scratchp)
{
    int r = 0;
    pthread_mutex_lock(&h->text_lock);
    if (!h->tokenizer)
        r = cb_tokenizer_new(&h->tokenizer, &h->vocab);
    *scratchp = h->scratch;
    h->scratch = NULL;
    if (!r && !*scratchp)
        r = cb_tokenizer_scratch_new(scratchp, h->tokenizer);
    pthread_mutex_unlock(&h->text_lock);
    if (r == -ENOTSUP)
        return cb_fail_at("the model's pre-tokenizer is unknown to this library", CB_VERSION, 0, 0);
    return r ? cb_fail(CB_NO_MEMORY) : 0;
}

static void return_scratch(struct cb_handle *h, struct cb_tokenizer_scratch *scratch)
{
    pthread_mutex_lock(&h->text_lock);
    if (!h->scratch) {
        h->scratch = scratch;
        scratch = NULL;
    }
    pthread_mutex_unlock(&h->text_lock);
    cb_tokenizer_scratch_free(scratch);
}

void cb_words_fini(struct cb_handle *h)
{
    if (h->tokenizer) {
        cb_tokenizer_scratch_free(h->scratch);
        cb_tokenizer_free(h->tokenizer);
    }
}

static uint32_t clip(size_t n)
{
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t)n;
}

static int encode(struct cb_handle *h, const char *text, size_t bytes, uint32_t flags,
                  uint32_t *ids, size_t n_max, size_t *np)
{
    struct cb_tokenizer_scratch *scratch;
    const char *nul = bytes ? memchr(text, 0, bytes) : NULL;
    uint32_t how = (flags & CB_PARSE_SPECIAL ? CB_TOKENIZE_SPECIAL : 0u) |
                   (flags & CB_NO_BOS ? CB_TOKENIZE_NO_BOS : 0u);
    int r;
    *np = 0;
    if (nul)
        return cb_fail_with(CB_BAD_NUL, clip((size_t)(nul - text)), 0);
    r = borrow_scratch(h, &scratch);
    if (r)
        return r;
    r = cb_tokenizer_encode(h->tokenizer, scratch, text, bytes, how, ids, n_max, np);
    return_scratch(h, scratch);
    switch (r) {
    case 0:
        return 0;
    case CB_TOKENIZE_ROOM:
        return CB_TOO_SMALL;
    case -EILSEQ:
        r = cb_fail_with(CB_BAD_UTF8, clip(*np), 0);
        *np = 0;
        return r;
    case -E2BIG:
        return cb_fail_at("a text of more than a GiB", CB_INVALID, 0, 0);
    default:
        return cb_fail(r == -ENOMEM ? CB_NO_MEMORY : CB_INTERNAL);
    }
}

int cb_text_ids(struct cb_handle *h, const char *text, size_t bytes, uint32_t flags,
                uint32_t **idsp, size_t *np)
{
    size_t n_max = bytes / 3 + 16; /* enough for most text */
    int r;
    for (;;) {
        uint32_t *ids = malloc(n_max * sizeof(*ids));
        if (!ids)
            return cb_fail(CB_NO_MEMORY);
        r = encode(h, text, bytes, flags, ids, n_max, np);
        if (!r) {
            *idsp = ids;
            return 0;
        }
        free(ids);
        if (r != CB_TOO_SMALL)
            return r;
        n_max = *np;
    }
}

int cb_tokenize(struct cb_handle *h, const char *text, size_t text_bytes, uint32_t flags,
                uint32_t *ids, size_t n_max, size_t *np)
{
    int r = cb_enter(h);
    if (r || (!text && text_bytes) || !np || (!ids && n_max) ||
        flags & ~(uint32_t)(CB_PARSE_SPECIAL | CB_NO_BOS))
        return cb_fail(r ? r : CB_INVALID);
    r = encode(h, text, text_bytes, flags, ids, n_max, np);
    return r == CB_TOO_SMALL ? cb_fail(r) : r;
}

/* ---- ids to text ----------------------------------------------------------------------------- */

struct cb_detokenizer {
    struct cb_handle *h;
    struct cb_decoder decoder;
    struct cb_grow text;
    uint32_t flags;
};

static void detokenizer_begin(struct cb_detokenizer *d, struct cb_handle *h, uint32_t flags)
{
    d->h = h;
    d->flags = flags & CB_SHOW_SPECIAL ? CB_DECODE_SPECIAL : 0;
    cb_decoder_init(&d->decoder, &h->vocab, NULL, d->flags);
}

static int detokenizer_feed(struct cb_detokenizer *d, const uint32_t *ids, size_t n, bool is_last)
{
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    size_t n_tail = 0, n_fed;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= d->h->vocab.n_tokens)
            return cb_fail_with(CB_BAD_TOKEN, ids[i], d->h->vocab.n_tokens);
    if (cb_grow_feed(&d->decoder, ids, n, &n_fed, &d->text))
        return cb_fail(CB_NO_MEMORY);
    if (!is_last)
        return 0;
    if (cb_grow_finish(&d->decoder, &d->text) || cb_grow_reserve(&d->text, sizeof(replacement)))
        return cb_fail(CB_NO_MEMORY);
    cb_decoder_tail(&d->decoder, &n_tail);
    if (n_tail) {
        memcpy(d->text.bytes + d->text.n, replacement, 3);
        d->text.n += 3;
    }
    cb_decoder_init(&d->decoder, &d->h->vocab, NULL, d->flags);
    return 0;
}

int cb_detokenizer_new(struct cb_handle *h, uint32_t flags, struct cb_detokenizer **dp)
{
    int r = cb_enter(h);
    if (r || !dp || flags & ~CB_SHOW_SPECIAL)
        return cb_fail(r ? r : CB_INVALID);
    *dp = calloc(1, sizeof(**dp));
    if (!*dp)
        return cb_fail(CB_NO_MEMORY);
    detokenizer_begin(*dp, h, flags);
    return 0;
}

int cb_detokenizer_feed(struct cb_detokenizer *d, const uint32_t *ids, size_t n, int is_last,
                        const char **textp, size_t *bytesp)
{
    int r = d ? cb_enter(d->h) : CB_INVALID;
    if (r || (n && !ids) || !textp || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *textp = "";
    *bytesp = 0;
    d->text.n = 0;
    r = detokenizer_feed(d, ids, n, is_last);
    if (r)
        return r;
    if (d->text.n)
        *textp = d->text.bytes;
    *bytesp = d->text.n;
    return 0;
}

void cb_detokenizer_free(struct cb_detokenizer *d)
{
    if (d)
        free(d->text.bytes);
    free(d);
}

int cb_detokenize(struct cb_handle *h, const uint32_t *ids, size_t n, uint32_t flags, char *text,
                  size_t bytes_max, size_t *bytesp)
{
    struct cb_detokenizer d = {0};
    int r = cb_enter(h);
    if (r || (n && !ids) || (bytes_max && !text) || !bytesp || flags & ~CB_SHOW_SPECIAL)
        return cb_fail(r ? r : CB_INVALID);
    *bytesp = 0;
    detokenizer_begin(&d, h, flags);
    r = detokenizer_feed(&d, ids, n, true);
    if (!r) {
        *bytesp = d.text.n;
        if (d.text.n > bytes_max)
            r = cb_fail(CB_TOO_SMALL);
        else if (d.text.n)
            memcpy(text, d.text.bytes, d.text.n);
    }
    free(d.text.bytes);
    return r;
}

/* ---- chats ----------------------------------------------------------------------------------- */

int cb_text_chat(struct cb_handle *h, const struct cb_chat_message *messages, size_t n,
                 char **textp, size_t *bytesp)
{
    struct cb_chat_turn *turns;
    size_t all = 256, bytes = 0;
    char *text;
    int r;
    if (!n || n > 1u << 20)
        return cb_fail_at("n_messages", CB_INVALID, 0, 0);
    turns = calloc(n, sizeof(*turns));
    if (!turns)
        return cb_fail(CB_NO_MEMORY);
    for (size_t i = 0; i < n; i++) {
        const struct cb_chat_message *m = &messages[i];
        if (!m->role || !m->content) {
            free(turns);
            return cb_fail_at("a message lacks role or content", CB_INVALID, 0, 0);
        }
        turns[i].role = m->role;
        turns[i].content = m->content;
        turns[i].content_bytes = m->content_bytes ? m->content_bytes : strlen(m->content);
        all += strlen(m->role) + turns[i].content_bytes + 64;
    }
    for (;;) {
        text = malloc(all + 1);
        r = text ? cb_chat_render(&h->vocab, turns, n, true, text, all, &bytes) : -ENOMEM;
        if (r != CB_CHAT_ROOM)
            break;
        free(text);
        all = bytes;
    }
    free(turns);
    if (r) {
        free(text);
        return cb_fail(r == -ENOMEM                     ? CB_NO_MEMORY
                       : r == -ENOTSUP || r == -ENODATA ? CB_NO_TEMPLATE
                                                        : CB_INVALID);
    }
    text[bytes] = 0;
    *textp = text;
    *bytesp = bytes;
    return 0;
}

int cb_chat(struct cb_handle *h, const struct cb_chat_message *messages, size_t n, char *text,
            size_t bytes_max, size_t *bytesp)
{
    char *all;
    int r = cb_enter(h);
    if (r || !messages || (bytes_max && !text) || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *bytesp = 0;
    r = cb_text_chat(h, messages, n, &all, bytesp);
    if (r)
        return r;
    if (*bytesp > bytes_max)
        r = cb_fail(CB_TOO_SMALL);
    else
        memcpy(text, all, *bytesp);
    free(all);
    return r;
}
