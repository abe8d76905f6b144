/* client/outputs.h - what a batch gives back: names, and copies of all that its requests made.
 *
 * Copies, for a slot of the handle is needed again as soon as its request is over. */
#ifndef CB_CLIENT_OUTPUTS_H
#define CB_CLIENT_OUTPUTS_H

#include "client/internal.h"

/* Output i is of prompt i / n_sequences. */
struct cb_outputs_made {
    struct cb_outputs outputs; /* what the caller gets; cb_outputs_free frees all */
    struct cb_output *v;
    size_t n_prompts;
    uint32_t n_sequences, n_top; /* n_top: top_logprobs of them */
    char (*names)[48];
    void **copies;         /* [n]: what an output points to */
    uint32_t **prompt_ids; /* [n_prompts] */
};

/* Named from req_<first_number> on. NULL: out of memory. */
struct cb_outputs_made *cb_outputs_new(size_t n_prompts, uint32_t n_sequences,
                                       uint64_t first_number);

/* Takes the ids, which are of the heap, for all outputs of the prompt. */
void cb_outputs_set_prompt(struct cb_outputs_made *m, size_t prompt_idx, uint32_t *ids, size_t n);

/* Copies what the request made, which has ended by this event. */
void cb_outputs_take(struct cb_outputs_made *m, size_t i, struct cb_handle *h,
                     const struct cb_event *event);

/* It failed without having run, or without an end of its own; words are copied. */
void cb_outputs_fail(struct cb_outputs_made *m, size_t i, int status, const char *words);

#endif
