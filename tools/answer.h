/* tools/answer.h - what became of a prompt, as a line of JSON. */
#ifndef CB_TOOLS_ANSWER_H
#define CB_TOOLS_ANSWER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/cbclient.h"
#include "tools/prompts.h"

/* Of a request that has ended by this event; its slot is not released yet. */
json_t *answer_json(struct cb_handle *h, const struct cb_event *event, const struct prompt *p);

/* Of one that never came to run. */
json_t *answer_refused(const struct prompt *p, int status, const char *words);

json_t *answer_ids(const uint32_t *ids, size_t n);

/* One line; keys in alphabetical order. */
void answer_print(const json_t *o, FILE *out);

#endif
