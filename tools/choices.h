/* tools/choices.h - how tokens are chosen, as users write it: options of a command line and keys of
 * a JSON object, of the same names, for the same fields of a request.
 *
 * Values are only shaped here; whether they are within bounds, library and daemon say. */
#ifndef CB_TOOLS_CHOICES_H
#define CB_TOOLS_CHOICES_H

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cbclient.h"
#include "tools/complain.h"

/* A request's fields, and the lists that they point to, which are owned. */
struct choices {
    const struct cbctl *ctl; /* for complaints about the command line */
    struct cb_request *request;
    uint32_t *allowed, *banned;
    struct cb_bias *biases;
    bool failed; /* after a complaint */
};

/* For argp_children: its input is a struct choices. */
extern const struct argp choices_argp;

void choices_fini(struct choices *c);

/* Takes a key of a JSON object: 1; 0: it is not one of these; -1: its value makes no sense, and
 * fault[bytes] says why. */
int choices_take_key(struct choices *c, const char *key, const json_t *value, char *fault,
                     size_t bytes);

#endif
