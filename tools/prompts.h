/* tools/prompts.h - the prompts of `cbctl run`: a growing list, from the command line, from ids,
 * from a file with a JSON object a line. Each has its own options, the command line's where a line
 * says nothing. A line that makes no sense is a prompt that fails: the others run. */
#ifndef CB_TOOLS_PROMPTS_H
#define CB_TOOLS_PROMPTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cbclient.h"
#include "tools/complain.h"
#include "tools/choices.h"

enum { PROMPT_STOPS_MAX = 16, PROMPT_STOP_IDS_MAX = 64 };
/* JSON's whole numbers are signed for most who read it: every seed comes back as it was given. */
#define PROMPT_SEED_MAX        ((uint64_t)INT64_MAX)
#define PROMPT_DEADLINE_MS_MAX 1000000000000ull
#define PROMPT_PRIORITY_MAX    255
#define PROMPT_SEQUENCES_MAX   64

struct prompt {
    char *text;    /* owned; NULL: ids */
    uint32_t *ids; /* owned: given, or the text's once it was tokenized */
    size_t n_ids;
    char *fault;      /* owned: why its line can't be sent; else NULL */
    const char *file; /* where it stands, for complaints; NULL: on the command line */
    size_t line_number;
    struct cb_request request; /* its options; the prompt itself is filled in when it is sent */
    struct cb_string stops[PROMPT_STOPS_MAX]; /* of its line, if request.stops is NULL */
    uint32_t stop_ids[PROMPT_STOP_IDS_MAX];   /* likewise */
    struct choices choices; /* what its line says of how tokens are chosen: its lists */
    json_t *line; /* owned: keeps alive what stops and salt point to; NULL: the command line does */
};

struct prompts {
    const struct cbctl *ctl; /* for complaints */
    struct prompt *v;        /* moves as the list grows */
    size_t n;
};

void prompts_fini(struct prompts *list);

/* Each adds; false after a complaint. Text and ids get `defaults` for options. */
bool prompts_add_text(struct prompts *list, const char *text, const struct cb_request *defaults);
bool prompts_add_ids(struct prompts *list, const char *ids, const struct cb_request *defaults);
/* Standard input as one text. */
bool prompts_add_stdin(struct prompts *list, const struct cb_request *defaults);
/* Lines of {"text": ...} or {"ids": [...]}; "-" is standard input. False only if it can't be
 * read. */
bool prompts_add_file(struct prompts *list, const char *file, const struct cb_request *defaults);

/* One of its lines, the number'th from 1, whose prompt has a fault if it makes no sense. file is not
 * copied. False: out of memory. */
bool prompts_add_line(struct prompts *list, const char *file, size_t number, const char *line,
                      size_t bytes, const struct cb_request *defaults);
/* Nothing but blanks: no prompt. line is 0-terminated. */
bool prompts_is_blank(const char *line, size_t bytes);

/* Why the prompt's options, which are well-formed each, can't be meant together; NULL: they can. */
const char *prompt_fault(const struct prompt *p);

/* How many sequences it wants, from 1. */
uint32_t prompt_n(const struct prompt *p);

/* Makes ids of a prompt's text, so that they can be shown: it is all there is, or a user's message
 * behind that of the system (NULL: none) in the model's template. 0, or a status that cb_message
 * explains. */
int prompt_tokenize(struct prompt *p, struct cb_handle *h, bool is_chat, const char *system);

/* Points the request at the prompt's ids and its own stops, which have stopped moving. */
void prompt_complete(struct prompt *p);

#endif
