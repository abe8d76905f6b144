/* client/text.c - a request's text as it grows, and text and ids apart from requests.
 *
 * The text of a request is made when somebody asks, by whoever asks, from the ids in shared memory:
 * the daemon sends none, and a client that wants ids pays nothing. It is kept whole, so that pieces,
 * whole text and final text are views of one buffer and can't differ. Stops are matched here by
 * the daemon's own matcher; what may begin one stays in the decoder until that is decided. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/chat.h"
#include "client/text/decode.h"
#include "client/text/tokenizer.h"
#include "shm/stop.h"
#include "shm/utf8.h"

static_assert(CB_NO_TOKEN == CB_VOCAB_NONE, "cbclient.h spells vocab.h out");

struct buffer {
    char *bytes;
    size_t n, capacity;
};

struct cb_text {
    struct cb_decoder decoder;
    struct buffer text;
    uint32_t n_fed;
    size_t n_told; /* bytes that cb_text has handed out */
    bool finished; /* no more text will come */
    bool keep_stop;
    char *stop_bytes; /* the stop strings, one after another, for keep_stop */
    size_t stop_off[CB_STOPS_MAX + 1];
    struct cb_stops stops;
};

/* Room for n more bytes and a 0. */
static int buffer_reserve(struct buffer *b, size_t n)
{
    size_t capacity = b->capacity ? b->capacity : 256;
    char *bytes;
    while (capacity - b->n < n + 1)
        capacity *= 2;
    if (capacity == b->capacity)
        return 0;
    bytes = realloc(b->bytes, capacity);
    if (!bytes)
        return -ENOMEM;
    b->bytes = bytes;
    b->capacity = capacity;
    return 0;
}

/* Most bytes that one id, with what was held back before it, can come to. */
static size_t id_room(const struct cb_vocab *vocab)
{
    return 3 * ((size_t)CB_STOP_BYTES_MAX + vocab->header->token_bytes_max);
}

/* Feeds ids, appending what is certain; *n_fedp counts those taken. 0, CB_DECODE_STOPPED, -ENOMEM. An
 * id that the vocabulary has no text for (models may have more rows than that) adds none. */
static int feed(struct cb_decoder *d, const uint32_t *ids, size_t n, size_t *n_fedp,
                struct buffer *b)
{
    for (*n_fedp = 0;;) {
        size_t n_taken = 0, n_out = 0;
        int r = cb_decoder_feed(d, ids + *n_fedp, n - *n_fedp, &n_taken,
                                b->bytes ? b->bytes + b->n : NULL,
                                b->bytes ? b->capacity - b->n - 1 : 0, &n_out);
        b->n += n_out;
        *n_fedp += n_taken;
        if (r == CB_DECODE_ROOM) {
            if (buffer_reserve(b, id_room(d->vocab)))
                return -ENOMEM;
        } else if (r == -EINVAL) {
            ++*n_fedp;
        } else {
            return r;
        }
    }
}

static int finish(struct cb_decoder *d, struct buffer *b)
{
    size_t n_out = 0;
    if (buffer_reserve(b, 3 * (size_t)CB_STOP_BYTES_MAX + 16))
        return -ENOMEM;
    cb_decoder_finish(d, b->bytes + b->n, b->capacity - b->n - 1, &n_out);
    b->n += n_out;
    return 0;
}

/* ---- a request's text ------------------------------------------------------------------------------ */

static int add_stop(struct cb_text *t, const struct cb_string *stop)
{
    switch (cb_stops_add(&t->stops, stop->bytes, stop->n)) {
    case 0:
        return 0;
    case -EILSEQ:
        return cb_fail_at("stop string", CB_BAD_UTF8,
                          (uint32_t)cb_utf8_valid((const uint8_t *)stop->bytes, stop->n), 0);
    default:
        return cb_fail_at("bytes of a stop string", CB_BAD_STOP,
                          stop->n > UINT32_MAX ? UINT32_MAX : (uint32_t)stop->n, CB_STOP_BYTES_MAX);
    }
}

int cb_text_new(struct cb_text **textp, const struct cb_handle *h, const struct cb_string *stops,
                size_t n_stops, uint32_t flags)
{
    struct cb_text *t = calloc(1, sizeof(*t));
    size_t all = 0;
    int r = 0;
    if (!t)
        return cb_fail(CB_NO_MEMORY);
    cb_stops_init(&t->stops);
    for (size_t i = 0; i < n_stops && !r; i++) {
        r = stops[i].bytes || !stops[i].n ? add_stop(t, &stops[i]) : cb_fail(CB_INVALID);
        all += stops[i].n;
    }
    if (!r && flags & CB_KEEP_STOP && n_stops) {
        t->keep_stop = true;
        t->stop_bytes = malloc(all);
        if (!t->stop_bytes)
            r = cb_fail(CB_NO_MEMORY);
        for (size_t i = 0; i < n_stops && !r; i++) {
            memcpy(t->stop_bytes + t->stop_off[i], stops[i].bytes, stops[i].n);
            t->stop_off[i + 1] = t->stop_off[i] + stops[i].n;
        }
    }
    if (r) {
        cb_text_free(t);
        return r;
    }
    cb_decoder_init(&t->decoder, &h->vocab, n_stops ? &t->stops : NULL, 0);
    *textp = t;
    return 0;
}

struct cb_text *cb_text_free(struct cb_text *t)
{
    if (t) {
        free(t->text.bytes);
        free(t->stop_bytes);
        free(t);
    }
    return NULL;
}

static int text_end(struct cb_text *t)
{
    uint32_t stop = cb_decoder_stop_idx(&t->decoder);
    size_t n;
    if (stop == CB_VOCAB_NONE)
        return finish(&t->decoder, &t->text) ? CB_NO_MEMORY : 0;
    if (!t->keep_stop)
        return 0;
    n = t->stop_off[stop + 1] - t->stop_off[stop];
    if (buffer_reserve(&t->text, n))
        return CB_NO_MEMORY;
    memcpy(t->text.bytes + t->text.n, t->stop_bytes + t->stop_off[stop], n);
    t->text.n += n;
    return 0;
}

/* Brings the text up to ids [n]; ended: there will be no more of them. */
static int text_update(struct cb_text *t, const uint32_t *ids, uint32_t n, bool ended)
{
    size_t n_fed;
    int r;
    if (t->finished)
        return 0;
    if (buffer_reserve(&t->text, 0)) /* so that there is a place for the 0 */
        return CB_NO_MEMORY;
    if (n > t->n_fed && cb_decoder_stop_idx(&t->decoder) == CB_VOCAB_NONE) {
        r = feed(&t->decoder, ids + t->n_fed, n - t->n_fed, &n_fed, &t->text);
        t->n_fed += (uint32_t)n_fed;
        if (r == -ENOMEM)
            return CB_NO_MEMORY;
    }
    if (!ended && cb_decoder_stop_idx(&t->decoder) == CB_VOCAB_NONE)
        return 0;
    r = text_end(t);
    t->finished = !r;
    return r;
}

/* The request's text, brought up to date. */
static int current_text(struct cb_handle *h, uint64_t id, struct cb_text **textp)
{
    const uint32_t *ids = NULL;
    struct cb_text *t = NULL;
    struct cb_held *q;
    uint32_t n = 0, flags = 0;
    bool ended = false;
    int r;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        t = q->text;
        ids = q->ids;
        flags = q->flags;
        ended = q->state >= CB_REQUEST_ENDED;
        n = q->state == CB_REQUEST_RUNNING && ids ? cb_lane_client_emitted(h->lane, CB_ID_SLOT(id))
                                                  : q->n_seen;
    }
    pthread_mutex_unlock(&h->lock);
    if (!q)
        return cb_fail(CB_NOT_FOUND);
    if (!t) {
        r = cb_text_new(&t, h, NULL, 0, flags);
        if (r)
            return r;
        q->text = t; /* the caller's own: one call at a time, and no release meanwhile */
    }
    *textp = t;
    r = text_update(t, ids, n, ended);
    if (!r)
        t->text.bytes[t->text.n] = 0;
    return r ? cb_fail(r) : 0;
}

int cb_text(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp)
{
    struct cb_text *t;
    int r = cb_enter(h);
    if (r || !textp || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *textp = "";
    *bytesp = 0;
    r = current_text(h, id, &t);
    if (r || t->n_told == t->text.n)
        return r;
    *textp = t->text.bytes + t->n_told;
    *bytesp = t->text.n - t->n_told;
    t->n_told = t->text.n;
    return 1;
}

int cb_text_all(struct cb_handle *h, uint64_t id, const char **textp, size_t *bytesp)
{
    struct cb_text *t;
    int r = cb_enter(h);
    if (r || !textp || !bytesp)
        return cb_fail(r ? r : CB_INVALID);
    *textp = "";
    *bytesp = 0;
    r = current_text(h, id, &t);
    if (r)
        return r;
    *textp = t->text.bytes;
    *bytesp = t->text.n;
    return 0;
}

int cb_text_tail(struct cb_handle *h, uint64_t id, uint8_t tail[4], size_t *np)
{
    struct cb_text *t;
    const uint8_t *bytes;
    int r = cb_enter(h);
    if (r || !tail || !np)
        return cb_fail(r ? r : CB_INVALID);
    *np = 0;
    r = current_text(h, id, &t);
    if (r || !t->finished)
        return r;
    bytes = cb_decoder_tail(&t->decoder, np);
    memcpy(tail, bytes, *np);
    return 0;
}

/* ---- text to ids ----------------------------------------------------------------------------------- */

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

void cb_text_fini(struct cb_handle *h)
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

/* ---- ids to text ----------------------------------------------------------------------------------- */

struct cb_detokenizer {
    struct cb_handle *h;
    struct cb_decoder decoder;
    struct buffer text;
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
    if (feed(&d->decoder, ids, n, &n_fed, &d->text))
        return cb_fail(CB_NO_MEMORY);
    if (!is_last)
        return 0;
    if (finish(&d->decoder, &d->text) || buffer_reserve(&d->text, sizeof(replacement)))
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

/* ---- chats ----------------------------------------------------------------------------------------- */

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
