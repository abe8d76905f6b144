/* kernels/philox.h - counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random
 * numbers: as easy as 1, 2, 3").
 *
 * A draw is a pure function of the request's seed and of which draw it is, and of nothing else: it
 * survives preemption, restart, and any company in the batch. */
#ifndef CB_KERNELS_PHILOX_H
#define CB_KERNELS_PHILOX_H

#include <stdint.h>

/* counter[] becomes the four random words. */
static inline void philox4x32_10(uint32_t counter[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53 * counter[0];
        uint64_t b = (uint64_t)0xcd9e8d57 * counter[2];

        counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ k0;
        counter[1] = (uint32_t)b;
        counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ k1;
        counter[3] = (uint32_t)a;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
}

/* Uniform in [0, 1): the first 53 bits (word 0 is the more significant) times 2^-53.
 * Key: seed, low word first. Counter: child index, token index, draw, 0. */
static inline double philox_uniform(uint64_t seed, uint32_t child_idx, uint32_t token_idx,
                                    uint32_t draw)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4] = {child_idx, token_idx, draw, 0};

    philox4x32_10(words, key);
    return (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
}

#endif
