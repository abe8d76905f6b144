/* client/grow.c - see grow.h. Sizes double, so a long text costs a constant per byte. */
#include "client/grow.h"

#include <errno.h>
#include <stdlib.h>

int cb_grow_reserve(struct cb_grow *b, size_t n)
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

int cb_grow_feed(struct cb_decoder *d, const uint32_t *ids, size_t n, size_t *n_fedp,
                 struct cb_grow *b)
{
    for (*n_fedp = 0;;) {
        size_t n_taken = 0, n_out = 0;
        int r = cb_decoder_feed(d, ids + *n_fedp, n - *n_fedp, &n_taken,
                                b->bytes ? b->bytes + b->n : NULL,
                                b->bytes ? b->capacity - b->n - 1 : 0, &n_out);
        b->n += n_out;
        *n_fedp += n_taken;
        if (r == CB_DECODE_ROOM) {
            if (cb_grow_reserve(b, id_room(d->vocab)))
                return -ENOMEM;
        } else if (r == -EINVAL) {
            ++*n_fedp;
        } else {
            return r;
        }
    }
}

int cb_grow_finish(struct cb_decoder *d, struct cb_grow *b)
{
    size_t n_out = 0;
    if (cb_grow_reserve(b, 3 * (size_t)CB_STOP_BYTES_MAX + 16))
        return -ENOMEM;
    cb_decoder_finish(d, b->bytes + b->n, b->capacity - b->n - 1, &n_out);
    b->n += n_out;
    return 0;
}
