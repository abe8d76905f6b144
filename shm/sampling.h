/* shm/sampling.h - what a request may ask of the choice of tokens, beside what its entry says: bounds
 * of the options CB_OPTION_SAMPLING, _BIASES, _ALLOWED_IDS and _BANNED_IDS (shm/format.h).
 *
 * The client checks before it sends, the daemon on its copy, both by these calls. Pure functions,
 * like message.h's; an answer is CB_OK or a status with the two numbers of its text. Floats are
 * compared by their bits, for some of our callers are threads to which denormals count as zero. */
#ifndef CB_SHM_SAMPLING_H
#define CB_SHM_SAMPLING_H

#include <stdint.h>

#include "shm/format.h"
#include "shm/status.h"

/* Nothing is asked. */
void cb_sampling_init(struct cb_sampling *s);

/* min_p and typical_p below the least normal number become that. */
enum cb_status cb_sampling_check(struct cb_sampling *s, uint32_t n_vocab, uint32_t detail[2]);

/* Strictly ascending ids below n_vocab, with biases within bounds. */
enum cb_status cb_sampling_check_biases(const struct cb_logit_bias *biases, uint32_t n,
                                        uint32_t n_vocab, uint32_t detail[2]);

/* Strictly ascending ids below n_vocab, 1 to CB_IDS_MAX of them. which: CB_PARAMETER_ALLOWED or
 * CB_PARAMETER_BANNED. */
enum cb_status cb_sampling_check_ids(const uint32_t *ids, uint32_t n, uint32_t n_vocab,
                                     enum cb_parameter which, uint32_t detail[2]);

/* Of two such lists: some allowed id is not banned. No allowed ids: all are. */
enum cb_status cb_sampling_check_rest(const uint32_t *allowed, uint32_t n_allowed,
                                      const uint32_t *banned, uint32_t n_banned,
                                      uint32_t detail[2]);

#endif
