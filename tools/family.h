/* tools/family.h - the sequences of one prompt, of which there is mostly one: who of them waits, runs
 * or is over, and what became of each.
 *
 * Those that wait are sent together, as one request with children, as far as there is room; what is
 * drawn is the same in however many parts they go. */
#ifndef CB_TOOLS_FAMILY_H
#define CB_TOOLS_FAMILY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cbclient.h"

#define FAMILY_MAX 64

enum sequence_state { SEQUENCE_WAITS, SEQUENCE_RUNS, SEQUENCE_OVER };

struct sequence {
    enum sequence_state state;
    bool is_alone;  /* it was refused among others: is sent by itself */
    uint64_t id;    /* RUNS */
    size_t n_shown; /* bytes of its text that its user has shown */
    json_t *answer; /* OVER: what answer.h makes of it; NULL: nobody keeps it */
};

struct family {
    uint32_t n, n_running, n_over;
    struct sequence *v; /* [n] */
};

/* n from 1. False: out of memory. A zeroed family is none, and fine for family_fini. */
bool family_init(struct family *f, uint32_t n);
void family_fini(struct family *f);

/* Sends the first that wait, up to `most` of them; fewer and fewer, as long as there is no room and
 * none of this handle runs that could make some (n_running: of all families). The request is that of
 * the prompt, with n and child_idx of no matter. How many were sent, above 0; 0: none waits; or a
 * status that cb_message explains: CB_BUSY: no room now. */
int family_send(struct family *f, struct cb_handle *h, struct cb_request *request, uint32_t most,
                size_t n_running);

/* Which of those that run has this id, which one has. */
uint32_t family_find(const struct family *f, uint64_t id);
/* It ran, and waits again: alone from now on, or not. */
void family_wait_again(struct family *f, uint32_t i, bool is_alone);
/* It is over, whether it ran or not. Takes the answer. */
void family_over(struct family *f, uint32_t i, json_t *answer);
/* Those that wait are never sent: the family is as large as without them. None behind them runs. */
void family_cut(struct family *f);

bool family_is_over(const struct family *f);
bool family_waits(const struct family *f); /* some of it does */
/* Whether sequence i, which has this end, only had no place beside those that it was sent with. */
bool family_was_too_many(const struct family *f, uint32_t i, const struct cb_event *event);
void family_cancel(const struct family *f, struct cb_handle *h);

/* One object of all answers, which it takes: the only one's own; of several, a list "sequences", and
 * status and error of the first that failed. */
json_t *family_answer(struct family *f);

#endif
