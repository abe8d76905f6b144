/* tools/asked.h - what a command line asks of all its prompts: one set of options, for every command
 * that sends prompts. */
#ifndef CB_TOOLS_ASKED_H
#define CB_TOOLS_ASKED_H

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/cbclient.h"
#include "tools/complain.h"
#include "tools/choices.h"
#include "tools/prompts.h"

struct asked {
    const struct cbctl *ctl;    /* for complaints */
    struct cb_request defaults; /* of prompts that do not say */
    struct choices choices;     /* among the defaults */
    struct cb_string stops[PROMPT_STOPS_MAX];
    uint32_t stop_ids[PROMPT_STOP_IDS_MAX];
    bool chat; /* texts are users' messages */
    const char *system;
    bool failed;
};

/* For argp_children: its input is a struct asked. */
extern const struct argp asked_argp;

void asked_init(struct asked *a, const struct cbctl *ctl); /* which must not move from then on */
bool asked_failed(const struct asked *a);                  /* after a complaint */
void asked_fini(struct asked *a);

#endif
