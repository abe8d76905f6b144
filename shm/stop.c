/* Knuth-Morris-Pratt, one automaton a string, all advanced byte by byte. Aho-Corasick would need a
 * state for each of up to 4096 prefixes with edges by byte; at up to 16 strings and a few bytes a
 * token that table costs more to fill than it saves. `back` fits 8 bits: after 256 matched bytes
 * the search is over, so it is only asked for after at most 255, and it is shorter than what it
 * follows. */
#include "shm/stop.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "shm/utf8.h"

static_assert(CB_STOP_BYTES_MAX <= 256, "back has 8 bits");
static_assert(CB_STOPS_MAX * CB_STOP_BYTES_MAX <= UINT16_MAX, "first has 16 bits");

void cb_stops_init(struct cb_stops *stops)
{
    memset(stops, 0, sizeof *stops);
}

int cb_stops_add(struct cb_stops *stops, const void *bytes, size_t n)
{
    const uint8_t *text = bytes;
    if (n == 0)
        return -EINVAL;
    if (n > CB_STOP_BYTES_MAX)
        return -E2BIG;
    if (stops->n_stops == CB_STOPS_MAX)
        return -ENOSPC;
    if (cb_utf8_valid(text, n) != n)
        return -EILSEQ;

    uint32_t first = stops->first[stops->n_stops];
    struct cb_stop_link *chain = stops->chain + first;
    uint32_t matched = 0;
    for (uint32_t i = 0; i < n; i++) {
        chain[i].byte = text[i];
        if (i > 0) {
            while (matched > 0 && text[matched] != text[i])
                matched = chain[matched - 1].back;
            if (text[matched] == text[i])
                matched++;
        }
        chain[i].back = (uint8_t)matched;
    }
    stops->n_stops++;
    stops->first[stops->n_stops] = (uint16_t)(first + n);
    return 0;
}

/* How much of the string agrees with the stream after one more byte. */
static uint32_t advance(const struct cb_stop_link *chain, uint32_t matched, uint8_t byte)
{
    while (matched > 0 && chain[matched].byte != byte)
        matched = chain[matched - 1].back;
    return matched + (chain[matched].byte == byte);
}

int cb_stop_feed(const struct cb_stops *stops, struct cb_stop_state *state, const void *bytes,
                 size_t n, struct cb_stop_match *match)
{
    const uint8_t *text = bytes;
    for (size_t at = 0; at < n && stops->n_stops > 0; at++) {
        uint32_t longest = 0, stop_idx = 0;
        for (uint32_t i = 0; i < stops->n_stops; i++) {
            uint32_t first = stops->first[i], length = stops->first[i + 1] - first;
            assert(state->matched[i] < length); /* else it was fed again after a match */
            uint32_t matched = advance(stops->chain + first, state->matched[i], text[at]);
            state->matched[i] = (uint16_t)matched;
            if (matched == length && length > longest) {
                longest = length;
                stop_idx = i;
            }
        }
        if (longest > 0) {
            state->fed_bytes += at + 1;
            match->stop_idx = stop_idx;
            match->end_bytes = state->fed_bytes;
            match->text_bytes = state->fed_bytes - longest;
            return CB_STOP_FOUND;
        }
    }
    state->fed_bytes += n;
    return 0;
}

uint32_t cb_stop_held(const struct cb_stops *stops, const struct cb_stop_state *state)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < stops->n_stops; i++) {
        if (state->matched[i] > held)
            held = state->matched[i];
    }
    return held;
}
