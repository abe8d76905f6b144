/* sample/sampler.h - from what a request asked for to what the operator `sample` is told, and back.
 *
 * The arithmetic is the backend's (kernels.h). Here lies what the words mean: temperature 0 is
 * greedy, top_k 0 or above the vocabulary is off, top_p 1 is off, what a greedy request asks of
 * draws is nothing; which ids end a request, so that min_new_tokens can remove them; and where
 * random numbers come from: only from the request's seed and the index of the token. Nothing is
 * kept between steps: penalties see the request's ids as they are then, so a token computed again
 * is the same token. */
#ifndef CB_DAEMON_SAMPLE_SAMPLER_H
#define CB_DAEMON_SAMPLE_SAMPLER_H

#include "kernels/kernels.h"
#include "shm/format.h" /* how long lists may be */

#define SAMPLER_EOS_MAX  16
#define SAMPLER_ENDS_MAX (CB_STOP_IDS_MAX + SAMPLER_EOS_MAX) /* stop ids, and the model's own */

/* What few requests ask for. Lists are of ids below the vocabulary, each once. */
struct sampler_wishes {
    float min_p;                               /* [0, 1]; 0: off                            */
    float typical_p;                           /* (0, 1]; 1: off                            */
    float repetition_penalty;                  /* above 0; 1: off                           */
    float presence_penalty, frequency_penalty; /* 0: off                                    */
    uint32_t no_repeat_ngram;                  /* 0: off                                    */
    uint32_t min_new_tokens;                   /* 0: off                                    */
    uint32_t first_id;                         /* the first generated token; SAMPLE_NO_ID   */
    uint32_t n_biases, n_allowed, n_banned;    /* up to CB_BIASES_MAX, CB_IDS_MAX           */
    const struct sample_bias *biases;
    const uint32_t *allowed; /* ascending; none: all are */
    const uint32_t *banned;
    enum sample_logprobs logprobs;
    uint32_t n_best;      /* the best of each token too; with logprobs */
    bool prompt_logprobs; /* of the prompt's tokens, raw; with their n_best if there are logprobs */
};

/* Nothing. */
void sampler_wishes_init(struct sampler_wishes *w);

/* What a sampler's lists are copied to: its request's. */
struct sampler_lists {
    struct sample_bias biases[CB_BIASES_MAX];
    uint32_t allowed[CB_IDS_MAX], banned[CB_IDS_MAX];
    uint32_t ends[SAMPLER_ENDS_MAX];
};

struct sampler {
    float temperature, top_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t child_idx;            /* 0, or as set after sampler_init: another series of draws */
    struct sample_program program; /* lists in the request's sampler_lists */
    bool edits, cuts;              /* it changes rows, or draws from them */
    uint32_t first_id;
    enum sample_logprobs logprobs;
    uint32_t n_best;
    bool prompt_logprobs;
};

/* Clamps to the vocabulary and gives equal requests equal words: a greedy one has no other
 * parameter. */
void sampler_init(struct sampler *s, float temperature, uint32_t top_k, float top_p, uint64_t seed,
                  uint32_t n_vocab);

/* Adds wishes; their lists are copied to `lists`, which stay as long as the sampler. ends[n_ends],
 * up to SAMPLER_ENDS_MAX, are the ids that end the request. */
void sampler_wish(struct sampler *s, const struct sampler_wishes *w, struct sampler_lists *lists,
                  const uint32_t *ends, uint32_t n_ends);

/* The parameters of the token that follows ids [n_ids], the first n_prompt of which are the prompt.
 * ids and best [SAMPLE_BEST_MAX] stay until the step is done. */
void sampler_params(const struct sampler *s, const uint32_t *ids, uint32_t n_ids, uint32_t n_prompt,
                    struct sample_best *best, struct sample_params *params);

/* Those of a prompt's token `given_id`, of which only the log-probability is asked. */
void sampler_score_params(const struct sampler *s, uint32_t given_id, struct sample_best *best,
                          struct sample_params *params);

enum { SAMPLER_NOT_FINITE = 1, SAMPLER_BAD_TOKEN = 2, SAMPLER_NOTHING_LEFT = 3 };

/* 0 and *tokenp; SAMPLER_NOT_FINITE: the row was not all finite; SAMPLER_BAD_TOKEN: the device
 * returned an id outside the vocabulary; SAMPLER_NOTHING_LEFT: the wishes remove every token. */
int sampler_token(const struct sample *sample, uint32_t n_vocab, uint32_t *tokenp);

#endif
