/* One scanner serves both the checker and the decoder, so that they cannot disagree about what a
 * character is. Only the second byte of a sequence has a narrower range than 80..BF (Unicode, table
 * 3-7): there overlong forms, surrogates and what lies above U+10FFFF are told apart. */
#include "shm/utf8.h"

#include <string.h>

int cb_utf8_scan(const uint8_t *bytes, size_t n)
{
    uint8_t lead = bytes[0];
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return -1;

    int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == n)
            return 0;
        if (bytes[i] < least || bytes[i] > most)
            return -i;
        least = 0x80;
        most = 0xbf;
    }
    return length;
}

size_t cb_utf8_valid(const uint8_t *bytes, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint64_t eight;
        if (n - at >= sizeof eight) {
            memcpy(&eight, bytes + at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += sizeof eight;
                continue;
            }
        }
        int k = cb_utf8_scan(bytes + at, n - at);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    return at;
}
