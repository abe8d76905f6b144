/* sample/sampler.h - from what a request asked for to what the operator `sample` is told, and back.
 *
 * The arithmetic is the backend's (kernels.h). Here lies what the words mean: temperature 0 is
 * greedy, top_k 0 or above the vocabulary is off, top_p 1 is off; and where random numbers come
 * from: only from the request's seed and the index of the token, so nothing is kept between steps
 * and a token computed again is the same token. */
#ifndef CB_DAEMON_SAMPLE_SAMPLER_H
#define CB_DAEMON_SAMPLE_SAMPLER_H

#include "kernels/kernels.h"

struct sampler {
    float temperature, top_p;
    uint32_t top_k;
    uint64_t seed;
};

/* Clamps to the vocabulary and gives equal requests equal words: a greedy one has no other
 * parameter. */
void sampler_init(struct sampler *s, float temperature, uint32_t top_k, float top_p, uint64_t seed,
                  uint32_t n_vocab);

/* The parameters of generated token `token_idx`, counted from the original prompt. */
void sampler_params(const struct sampler *s, uint32_t token_idx, struct sample_params *params);

enum { SAMPLER_NOT_FINITE = 1, SAMPLER_BAD_TOKEN = 2 };

/* 0 and *tokenp; SAMPLER_NOT_FINITE: the row was not all finite; SAMPLER_BAD_TOKEN: the device
 * returned an id outside the vocabulary. */
int sampler_token(const struct sample *sample, uint32_t n_vocab, uint32_t *tokenp);

#endif
