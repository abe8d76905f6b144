/* client/grow.h - text that grows as ids are decoded into it. One thread; all zero is empty, and
 * `bytes` is the owner's to free. */
#ifndef CB_CLIENT_GROW_H
#define CB_CLIENT_GROW_H

#include <stddef.h>
#include <stdint.h>

#include "client/text/decode.h"

struct cb_grow {
    char *bytes; /* [n], with room for a 0 behind; NULL: empty */
    size_t n, capacity;
};

/* Room for n more bytes and a 0. 0 or -ENOMEM. */
int cb_grow_reserve(struct cb_grow *b, size_t n);

/* Feeds ids, appending what is certain; *n_fedp counts those taken. 0, CB_DECODE_STOPPED, -ENOMEM.
 * An id that the vocabulary has no text for (models may have more rows than that) adds none. */
int cb_grow_feed(struct cb_decoder *d, const uint32_t *ids, size_t n, size_t *n_fedp,
                 struct cb_grow *b);

/* Appends what the decoder had held back. 0 or -ENOMEM. */
int cb_grow_finish(struct cb_decoder *d, struct cb_grow *b);

#endif
