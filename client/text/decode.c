/* Two filters, one after the other: stop strings see the model's bytes and hold some back; what
 * passes is gathered into characters. The order matters: a stop may begin right after a broken
 * character, and replacing changes lengths.
 *
 * Room is not known before the text is: where it could be short, the decoder's place is copied
 * first and put back if it was. */
#include "client/text/decode.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
enum { REPLACEMENT_BYTES = 3 };

struct room {
    char *at;
    size_t left;
    bool short_of; /* something did not fit; all since is void */
};

int cb_decoder_init(struct cb_decoder *d, const struct cb_vocab *vocab,
                    const struct cb_stops *stops, uint32_t flags)
{
    if (stops && stops->n_stops == 0)
        stops = NULL;
    if (stops && (flags & CB_DECODE_SPECIAL))
        return -EINVAL;
    *d = (struct cb_decoder){.vocab = vocab, .stops = stops, .flags = flags};
    d->place.stop_idx = CB_VOCAB_NONE;
    return 0;
}

static void put(struct room *room, const void *bytes, size_t n)
{
    if (n == 0)
        return;
    if (n > room->left) {
        room->short_of = true;
        return;
    }
    memcpy(room->at, bytes, n);
    room->at += n;
    room->left -= n;
}

/* Settles as much of the tail as can be settled. */
static void settle(struct cb_decoder *d, struct room *room)
{
    struct cb_decoder_place *p = &d->place;
    while (p->n_tail > 0) {
        int k = cb_utf8_scan(p->tail, p->n_tail);
        if (k == 0)
            break;
        uint32_t length = (uint32_t)(k > 0 ? k : -k);
        if (k > 0 || (d->flags & CB_DECODE_RAW))
            put(room, p->tail, length);
        else
            put(room, replacement, REPLACEMENT_BYTES);
        p->n_tail -= length;
        memmove(p->tail, p->tail + length, p->n_tail);
    }
}

/* Bytes on their way to the reader: whole characters go on at once. */
static void pass(struct cb_decoder *d, const uint8_t *bytes, size_t n, struct room *room)
{
    struct cb_decoder_place *p = &d->place;
    p->passed_bytes += n;
    for (size_t at = 0; at < n;) {
        size_t n_whole = p->n_tail == 0 ? cb_utf8_valid(bytes + at, n - at) : 0;
        put(room, bytes + at, n_whole);
        at += n_whole;
        if (at < n) {
            p->tail[p->n_tail++] = bytes[at++];
            settle(d, room);
        }
    }
}

/* The first n of the bytes held back and the new ones, in this order, pass. Returns how many of the
 * new ones did. */
static size_t release(struct cb_decoder *d, const uint8_t *bytes, size_t n, struct room *room)
{
    struct cb_decoder_place *p = &d->place;
    size_t from_held = n < p->n_held ? n : p->n_held;
    pass(d, p->held, from_held, room);
    pass(d, bytes, n - from_held, room);
    p->n_held -= (uint32_t)from_held;
    memmove(p->held, p->held + from_held, p->n_held);
    return n - from_held;
}

/* One token's bytes. */
static void take(struct cb_decoder *d, const uint8_t *bytes, uint32_t n, struct room *room)
{
    struct cb_decoder_place *p = &d->place;
    if (!d->stops) {
        pass(d, bytes, n, room);
        return;
    }
    struct cb_stop_match match;
    if (cb_stop_feed(d->stops, &p->stop, bytes, n, &match) == CB_STOP_FOUND) {
        uint64_t end = d->flags & CB_DECODE_KEEP_STOP ? match.end_bytes : match.text_bytes;
        release(d, bytes, (size_t)(end - p->passed_bytes), room);
        p->n_held = 0;
        p->stop_idx = match.stop_idx;
        return;
    }
    size_t keep = cb_stop_held(d->stops, &p->stop);
    size_t n_used = release(d, bytes, p->n_held + n - keep, room);
    memcpy(p->held + p->n_held, bytes + n_used, n - n_used);
    p->n_held = (uint32_t)keep;
}

int cb_decoder_feed(struct cb_decoder *d, const uint32_t *ids, size_t n, size_t *n_taken, char *out,
                    size_t capacity, size_t *n_out)
{
    struct room room = {.at = out, .left = capacity};
    struct cb_decoder_place before;
    size_t i = 0;
    int r = 0;
    for (; i < n && !r; i++) {
        if (d->place.stop_idx != CB_VOCAB_NONE) {
            r = CB_DECODE_STOPPED;
            break;
        }
        if (ids[i] >= d->vocab->n_tokens) {
            r = -EINVAL;
            break;
        }
        uint32_t length;
        const uint8_t *bytes = d->flags & CB_DECODE_SPECIAL
                                   ? cb_vocab_bytes(d->vocab, ids[i], &length)
                                   : cb_vocab_text(d->vocab, ids[i], &length);
        bool tight =
            (size_t)REPLACEMENT_BYTES * (d->place.n_held + d->place.n_tail + length) > room.left;
        if (tight)
            before = d->place;
        char *at = room.at;
        take(d, bytes, length, &room);
        if (room.short_of) {
            d->place = before;
            room.at = at;
            r = CB_DECODE_ROOM;
            break;
        }
        if (d->place.stop_idx != CB_VOCAB_NONE)
            r = CB_DECODE_STOPPED;
    }
    *n_taken = i;
    *n_out = (size_t)(room.at - out);
    return r;
}

int cb_decoder_finish(struct cb_decoder *d, char *out, size_t capacity, size_t *n_out)
{
    struct room room = {.at = out, .left = capacity};
    struct cb_decoder_place before = d->place;
    release(d, NULL, d->place.n_held, &room);
    *n_out = 0;
    if (room.short_of) {
        d->place = before;
        return CB_DECODE_ROOM;
    }
    *n_out = (size_t)(room.at - out);
    return 0;
}

const uint8_t *cb_decoder_tail(const struct cb_decoder *d, size_t *n)
{
    *n = d->place.n_tail;
    return d->place.tail;
}

uint32_t cb_decoder_stop_idx(const struct cb_decoder *d)
{
    return d->place.stop_idx;
}
