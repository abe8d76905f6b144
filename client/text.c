/* client/text.c - a request's text as it grows.
 *
 * It is made when somebody asks, by whoever asks, from the ids in shared memory: the daemon sends
 * none, and a client that wants ids pays nothing. It is kept whole, so that pieces, whole text and
 * final text are views of one buffer and can't differ. Stops are matched here by the daemon's own
 * matcher; what may begin one stays in the decoder until that is decided. */
#include "client/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/stop.h"
#include "shm/utf8.h"

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

/* Up to ids [n], as far as there is text for them. */
static int text_feed(struct cb_text *t, const uint32_t *ids, uint32_t n, bool ended)
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

int cb_text_update(struct cb_text *t, const struct cb_handle *h, uint32_t n_restarts,
                   const uint32_t *ids, uint32_t n, bool ended)
{
    if (t->n_restarts != n_restarts)
        text_restart(h, t, n_restarts);
    int r = text_feed(t, ids, n, ended);
    if (!r)
        t->text.bytes[t->text.n] = 0;
    return r ? cb_fail(r) : 0;
}
