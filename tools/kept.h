/* tools/kept.h - a file of answers that grows, and what it holds from earlier runs.
 *
 * Each line is an object with "index", which prompt it answers, and "line_hash", of the prompt's
 * line, so that nobody continues with the prompts of another file. A last line that was torn, as by
 * a crash, is cut off. One process at a time: the file is locked. */
#ifndef CB_TOOLS_KEPT_H
#define CB_TOOLS_KEPT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tools/complain.h"

struct kept {
    const struct cbctl *ctl; /* for complaints */
    const char *path;        /* NULL: standard output */
    FILE *file;
    uint64_t *hashes; /* [n_room] of prompts that are answered; 0: this one is not */
    size_t n_room;
    size_t n;        /* answered       */
    size_t n_failed; /* with an error */
};

/* Opens it and looks what is there; path NULL: standard output, where nothing is. False after a
 * complaint. kept_close follows either way. */
bool kept_open(struct kept *k, const struct cbctl *ctl, const char *path);
/* False after a complaint: not all could be written. */
bool kept_close(struct kept *k);

uint64_t kept_hash(const char *line, size_t bytes); /* never 0 */

enum kept_answer { KEPT_NONE, KEPT_ANSWERED, KEPT_OTHERS };
/* What it had, when it was opened, for the prompt of this number and hash: OTHERS: an answer to
 * another line. */
enum kept_answer kept_find(const struct kept *k, size_t idx, uint64_t hash);

/* Whether there are answers to prompts from this number on. */
bool kept_has_more(const struct kept *k, size_t n_prompts);

/* Writes an answer, taking the object. False: it can't be written. */
bool kept_add(struct kept *k, size_t idx, uint64_t hash, json_t *answer);

#endif
