/* Stop strings and a text: the first byte says how many strings, then each is a length and its
 * bytes, then the text. Fed whole and byte by byte, the answer is the same, and it is a stop
 * that is there. */
#include <assert.h>
#include <string.h>

#include "shm/stop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct cb_stops stops;
    const uint8_t *strings[CB_STOPS_MAX], *end = data + n;
    size_t lengths[CB_STOPS_MAX];
    uint32_t n_wanted = n ? *data++ % (CB_STOPS_MAX + 1) : 0;
    cb_stops_init(&stops);
    for (uint32_t i = 0; i < n_wanted && data < end; i++) {
        size_t length = *data++;
        if (length > (size_t)(end - data))
            length = (size_t)(end - data);
        uint32_t idx = stops.n_stops;
        if (cb_stops_add(&stops, data, length) == 0) {
            strings[idx] = data;
            lengths[idx] = length;
        }
        data += length;
    }

    size_t n_text = (size_t)(end - data);
    struct cb_stop_state whole = {0}, steps = {0};
    struct cb_stop_match a = {0}, b = {0};
    int found = cb_stop_feed(&stops, &whole, data, n_text, &a), found_in_steps = 0;
    for (size_t i = 0; i < n_text && !found_in_steps; i++) {
        uint32_t held = cb_stop_held(&stops, &steps);
        found_in_steps = cb_stop_feed(&stops, &steps, data + i, 1, &b);
        /* Only what was held, and this byte, may belong to a stop. */
        assert(!found_in_steps || b.end_bytes - b.text_bytes <= held + 1);
        assert(found_in_steps || cb_stop_held(&stops, &steps) <= held + 1);
    }
    assert(found == found_in_steps);
    if (found) {
        assert(a.stop_idx == b.stop_idx && a.text_bytes == b.text_bytes &&
               a.end_bytes == b.end_bytes);
        assert(a.stop_idx < stops.n_stops && a.end_bytes <= n_text);
        assert(a.end_bytes - a.text_bytes == lengths[a.stop_idx]);
        assert(memcmp(data + a.text_bytes, strings[a.stop_idx], lengths[a.stop_idx]) == 0);
    } else {
        assert(cb_stop_held(&stops, &whole) == cb_stop_held(&stops, &steps));
    }
    return 0;
}
