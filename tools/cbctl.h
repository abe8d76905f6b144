/* tools/cbctl.h - what cbctl's commands share: a row each, and what all are handed.
 *
 * A command is one row of the table in cbctl.c and one function here: it parses its own arguments
 * (argp), talks, prints, and returns the exit status: 0 done, 1 it failed (the reason was printed),
 * 2 usage. */
#ifndef CB_TOOLS_CBCTL_H
#define CB_TOOLS_CBCTL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cbctl {
    const char *instance; /* NULL: default */
    bool json;            /* programs read the output */
    const char *command;  /* the row's name */
};

enum { CBCTL_OK = 0, CBCTL_FAILED = 1, CBCTL_USAGE = 2, CBCTL_INTERRUPTED = 130 };

int cmd_status(const struct cbctl *ctl, int argc, char **argv);
int cmd_top(const struct cbctl *ctl, int argc, char **argv);
int cmd_metrics(const struct cbctl *ctl, int argc, char **argv);
int cmd_admin(const struct cbctl *ctl, int argc, char **argv); /* clients, requests, ... */
int cmd_weights(const struct cbctl *ctl, int argc, char **argv);
int cmd_pause(const struct cbctl *ctl, int argc, char **argv);
int cmd_upgrade(const struct cbctl *ctl, int argc, char **argv);
int cmd_run(const struct cbctl *ctl, int argc, char **argv);
int cmd_generate(const struct cbctl *ctl, int argc, char **argv);
int cmd_bench(const struct cbctl *ctl, int argc, char **argv);

/* Prints "cbctl COMMAND: ..." and a newline to stderr. */
__attribute__((format(printf, 2, 3))) void cbctl_complain(const struct cbctl *ctl,
                                                          const char *format, ...);

/* "8", "1.5": the whole of text as a number within [least, most]; complains and returns false
 * else. */
bool cbctl_number(const struct cbctl *ctl, const char *option, const char *text, double least,
                  double most, double *valuep);
/* The same for a whole number, in decimal or, after 0x, in hexadecimal. */
bool cbctl_whole(const struct cbctl *ctl, const char *option, const char *text, uint64_t least,
                 uint64_t most, uint64_t *valuep);

#endif
