/* tools/complain.h - whom a command works for, and what it says when it can't, in words
 * and by its exit status. */
#ifndef CB_TOOLS_COMPLAIN_H
#define CB_TOOLS_COMPLAIN_H

#include <stdbool.h>
#include <stdint.h>

struct cbctl {
    const char *instance; /* NULL: default */
    bool json;            /* programs read the output */
    const char *command;  /* the row's name */
};

/* Exit statuses: done; it failed, and the reason was printed; usage; a signal ended it. */
enum { CBCTL_OK = 0, CBCTL_FAILED = 1, CBCTL_USAGE = 2, CBCTL_INTERRUPTED = 130 };

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
