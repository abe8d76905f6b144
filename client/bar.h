/* client/bar.h - a line on a terminal that says how far something has come.
 *
 *      45%|###########              | 450/1000 [00:10<00:12, 45.0/s]
 *
 * Nothing is written where there is no terminal, and not more often than ten times a second. */
#ifndef CB_CLIENT_BAR_H
#define CB_CLIENT_BAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cb_bar {
    int fd;          /* -1: no terminal */
    size_t total;    /* 0: unknown      */
    size_t n_before; /* done before it began: of them the rate knows nothing */
    uint64_t begin_ns, shown_ns;
};

void cb_bar_init(struct cb_bar *bar, int fd, size_t total, size_t n_before);
/* n are done, n_before included; n_failed of them failed. always: whenever the last time was. */
void cb_bar_show(struct cb_bar *bar, size_t n, size_t n_failed, bool always);
/* Draws it for the last time, and ends its line. */
void cb_bar_end(struct cb_bar *bar, size_t n, size_t n_failed);

/* The line, of at most `width` columns, after so much time: returns out. */
#define CB_BAR_BYTES 256
char *cb_bar_text(const struct cb_bar *bar, size_t n, size_t n_failed, uint64_t elapsed_ns,
                  unsigned width, char out[CB_BAR_BYTES]);

#endif
