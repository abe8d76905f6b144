/* client/text.h - a request's text as far as it has been asked for. One thread at a time. */
#ifndef CB_CLIENT_TEXT_H
#define CB_CLIENT_TEXT_H

#include "client/grow.h"
#include "client/internal.h"
#include "shm/stop.h"

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

/* Copies the stops. 0 or CB_NO_MEMORY or CB_BAD_STOP, kept for cb_message. */
int cb_text_new(struct cb_text **textp, const struct cb_handle *h, const struct cb_string *stops,
                size_t n_stops, uint32_t flags);
struct cb_text *cb_text_free(struct cb_text *t); /* NULL is fine; returns NULL */

/* Brings it up to ids [n] of a request that has begun anew so often; ended: there will be no more of
 * them. Behind the text stands a 0 then. 0 or CB_NO_MEMORY, kept. */
int cb_text_update(struct cb_text *t, const struct cb_handle *h, uint32_t n_restarts,
                   const uint32_t *ids, uint32_t n, bool ended);

#endif
