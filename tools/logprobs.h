/* tools/logprobs.h - log-probabilities of an answer and its prompt, for eyes and for programs. */
#ifndef CB_TOOLS_LOGPROBS_H
#define CB_TOOLS_LOGPROBS_H

#include <jansson.h>
#include <stdbool.h>

#include "client/cbclient.h"
#include "tools/prompts.h"

/* Whether the request asks for any. */
bool logprobs_asked(const struct cb_request *request);

/* Prints a line a token that the event brings: its place, id, log-probability and text, then the
 * best ones there; the prompt's first, at places from -n to -1. label goes in front of each. */
void logprobs_print(struct cb_handle *h, const struct cb_event *event, const struct prompt *p,
                    const char *label);

/* Adds to the object of an ended request what was asked for: logprobs, top_logprobs,
 * prompt_logprobs, prompt_top_logprobs. */
void logprobs_json(struct cb_handle *h, uint64_t id, const struct cb_request *request, json_t *o);

#endif
