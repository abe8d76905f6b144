/* One buffer on the stack and one write a line, so that lines of several processes on one terminal
 * don't mix. A write that fails is not retried: there is nobody left to tell. */
#include "daemon/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/clock.h"

#define MINUTE_NS 60000000000ull

/* JOURNAL_STREAM is "device:inode" of the pipe that systemd gave us; a redirected stderr is not
 * it. */
static bool is_journal(int fd)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(fd, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

void log_init(struct log *l, int fd, enum log_level level, const struct clock *clock)
{
    *l = (struct log){
        .fd = fd, .level = level, .has_priorities = fd >= 0 && is_journal(fd), .clock = clock};
}

static void log_line(struct log *l, enum log_level level, int error, const char *format,
                     va_list args)
{
    static const char *const words[] = {[LOG_LEVEL_ERROR] = "error: ",
                                        [LOG_LEVEL_WARNING] = "warning: ",
                                        [LOG_LEVEL_INFO] = "",
                                        [LOG_LEVEL_DEBUG] = ""};
    char line[LOG_LINE_MAX];
    if (l->fd < 0 || level > l->level)
        return;
    int n = l->has_priorities ? snprintf(line, sizeof line, "<%d>", (int)level)
                              : snprintf(line, sizeof line, "cbd: %s", words[level]);
    size_t at = (size_t)n;
    n = vsnprintf(line + at, sizeof line - at, format, args);
    at += n < 0 ? 0 : (size_t)n;
    if (error && at < sizeof line) {
        n = snprintf(line + at, sizeof line - at, ": %s", strerror(error));
        at += n < 0 ? 0 : (size_t)n;
    }
    if (at > sizeof line - 1)
        at = sizeof line - 1;
    for (size_t i = 0; i < at; i++) /* what a client or a file named must not steer a terminal */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    line[at++] = '\n';
    ssize_t written = write(l->fd, line, at);
    (void)written;
}

#define LOG_BODY(level, error)                   \
    va_list args;                                \
    va_start(args, format);                      \
    log_line(l, (level), (error), format, args); \
    va_end(args)

void log_error(struct log *l, const char *format, ...)
{
    LOG_BODY(LOG_LEVEL_ERROR, 0);
}

void log_warn(struct log *l, const char *format, ...)
{
    int error = errno;
    LOG_BODY(LOG_LEVEL_WARNING, error);
}

void log_warnx(struct log *l, const char *format, ...)
{
    LOG_BODY(LOG_LEVEL_WARNING, 0);
}

void log_info(struct log *l, const char *format, ...)
{
    LOG_BODY(LOG_LEVEL_INFO, 0);
}

void log_debug(struct log *l, const char *format, ...)
{
    LOG_BODY(LOG_LEVEL_DEBUG, 0);
}

void log_client(struct log *l, const char *format, ...)
{
    uint64_t now = clock_now(l->clock);
    if (l->window_ns == 0 || now - l->window_ns >= MINUTE_NS) {
        uint32_t n = l->n_left_out;
        l->window_ns = now;
        l->n_window = l->n_left_out = 0;
        if (n)
            log_warnx(l, "%u more lines about clients were left out", n);
    }
    if (++l->n_window > LOG_CLIENT_BURST) {
        l->n_left_out++;
        return;
    }
    LOG_BODY(LOG_LEVEL_WARNING, 0);
}
