/* base/log.h - lines for the operator, on stderr.
 *
 * Log what an operator acts on, count the rest. A line is one write. Under systemd (JOURNAL_STREAM
 * names our stderr) it begins with `<N>`, the priority; else with the program's name. Lines that a
 * client can cause go through log_client, which lets LOG_CLIENT_BURST through, then that many a
 * minute, and says how many it left out. Loop thread only; nothing allocates. */
#ifndef CB_DAEMON_BASE_LOG_H
#define CB_DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

struct clock;

#define LOG_CLIENT_BURST 20
#define LOG_LINE_MAX     1024 /* longer lines are cut */

enum log_level { /* the journal's numbers */
                 LOG_LEVEL_ERROR = 3,
                 LOG_LEVEL_WARNING = 4,
                 LOG_LEVEL_INFO = 6,
                 LOG_LEVEL_DEBUG = 7,
};

struct log {
    int fd; /* -1: nowhere */
    enum log_level level;
    bool has_priorities;
    const struct clock *clock;
    uint64_t window_ns; /* when the present minute of client lines began */
    uint32_t n_window, n_left_out;
};

/* Lines go to fd; whether it is the journal's is read from the environment. */
void log_init(struct log *l, int fd, enum log_level level, const struct clock *clock);

void log_error(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* With errno's words at the end, and without. */
void log_warn(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_warnx(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_info(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
void log_debug(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A warning that a client's behaviour caused. */
void log_client(struct log *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
