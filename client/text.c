/* client/text.c - a request's text as it grows.
 *
 * It is made when somebody asks, by whoever asks, from the ids in shared memory: the daemon sends
 * none, and a client that wants ids pays nothing. It is kept whole, so that pieces, whole text and
 * final text are views of one buffer and can't differ. Stops are matched here by the daemon's own
 * matcher; what may begin one stays in the decoder until that is decided. */
#include "client/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/grow.h"
#include "shm/stop.h"
#include "shm/utf8.h"

struct cb_text {
    struct cb_decoder decoder;
    struct cb_grow text;
    uint32_t n_fed;
    uint32_t n_restarts; /* of the request, as this knows it */
    size_t n_told;       /* bytes that cb_text has handed out */
    bool finished;       /* no more text will come */
    bool keep_stop;
    char *stop_bytes; /* the stop strings, one after another, for keep_stop */
    size_t stop_off[CB_STOPS_MAX + 1];
    struct cb_stops stops;
};

/* ---- a request's text ------------------------------------------------------------------------ */

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

/* The request has begun again: what there was of it is void. */
static void text_restart(const struct cb_handle *h, struct cb_text *t, uint32_t n_restarts)
{
    t->n_restarts = n_restarts;
    t->n_fed = 0;
    t->n_told = t->text.n = 0;
    t->finished = false;
    cb_decoder_init(&t->decoder, &h->vocab, t->stops.n_stops ? &t->stops : NULL, 0);
}

static int text_end(struct cb_text *t)
{
    uint32_t stop = cb_decoder_stop_idx(&t->decoder);
    size_t n;
    if (stop == CB_VOCAB_NONE)
        return cb_grow_finish(&t->decoder, &t->text) ? CB_NO_MEMORY : 0;
    if (!t->keep_stop)
        return 0;
    n = t->stop_off[stop + 1] - t->stop_off[stop];
    if (cb_grow_reserve(&t->text, n))
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
    if (cb_grow_reserve(&t->text, 0)) /* so that there is a place for the 0 */
        return CB_NO_MEMORY;
    if (n > t->n_fed && cb_decoder_stop_idx(&t->decoder) == CB_VOCAB_NONE) {
        r = cb_grow_feed(&t->decoder, ids + t->n_fed, n - t->n_fed, &n_fed, &t->text);
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
    uint32_t n = 0, flags = 0, n_restarts = 0;
    bool ended = false;
    int r;
    pthread_mutex_lock(&h->lock);
    q = cb_held_find_locked(h, id);
    if (q) {
        t = q->text;
        ids = q->ids;
        flags = q->flags;
        ended = q->state >= CB_REQUEST_ENDED;
        n = cb_count_locked(h, q);
        n_restarts = q->n_restarts;
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
    if (t->n_restarts != n_restarts)
        text_restart(h, t, n_restarts);
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
