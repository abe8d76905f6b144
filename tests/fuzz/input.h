/* tests/fuzz/input.h - an input that is eaten number by number; where nothing is left all are 0. */
#ifndef CB_TESTS_FUZZ_INPUT_H
#define CB_TESTS_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
    const uint8_t *at;
    size_t left;
};

/* The next n bytes, the first the highest. */
static inline uint64_t eat(struct input *in, size_t n)
{
    uint64_t value = 0;

    for (; n && in->left; n--, in->left--)
        value = value << 8 | *in->at++;
    return value;
}

#endif
