/* tests/util/score.h - how far a model's distributions are from recorded ones, teacher-forced.
 *
 * The file has input_ids [n_texts, n] i32, top_ids and top_logprobs [n_texts, n, 64] (best first),
 * next_logprob [n_texts, n - 1] f32. KL is taken over the recorded ids and one bucket for all
 * others. */
#ifndef CB_TESTS_UTIL_SCORE_H
#define CB_TESTS_UTIL_SCORE_H

#include <stdint.h>

#include "daemon/model/model.h"

struct score {
    double mean_kl, p99_kl;
    double top1_agreement; /* share of positions, 0 to 1 */
    double ppl, ref_ppl;   /* of the texts               */
    uint32_t n_positions;
    uint32_t
        n_disagree_wide; /* best ids differ although the recorded two best are over 0.3 apart */
};

/* Opens the model with room for the file's texts and scores its first n_texts (0: all). 0; else a
 * negative errno with message (MODEL_MESSAGE_MAX). */
int score_model(struct score *score, const char *model_path, const char *backend,
                const struct backend_config *backend_config, enum dtype kv_dtype,
                const char *teacher_path, uint32_t n_texts, char *message);

#endif
