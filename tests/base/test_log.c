/* Lines as an operator sees them: priorities only for the journal, one line each, clients
 * limited. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"

static char text[8192];

static uint32_t read_lines(int fd)
{
    uint32_t n = 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = 0;
    for (const char *t = text; *t; t++)
        n += *t == '\n';
    return n;
}

Test(log, a_line_is_a_line_whatever_is_in_it)
{
    int fds[2];
    struct log l;
    cr_assert_eq(pipe(fds), 0);
    log_init(&l, fds[1], LOG_LEVEL_INFO, &clock_monotonic);
    log_info(&l, "%s", "two\nlines \x1b[31m");
    cr_assert_eq(read_lines(fds[0]), 1);
    cr_assert_str_eq(text, "cbd: two lines  [31m\n");
    errno = ENOENT;
    log_warn(&l, "no %d", 3);
    (void)read_lines(fds[0]);
    cr_assert_str_eq(text, "cbd: warning: no 3: No such file or directory\n");
    char longer[3000];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    log_error(&l, "%s", longer);
    cr_assert_eq(read_lines(fds[0]), 1);
    cr_assert_eq(strlen(text), LOG_LINE_MAX);
    log_debug(&l, "not wanted");
    log_info(&l, "end");
    (void)read_lines(fds[0]);
    cr_assert_str_eq(text, "cbd: end\n");
}

Test(log, priorities_are_for_the_journal)
{
    int fds[2];
    struct log l;
    struct stat st;
    char stream[64];
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(fstat(fds[1], &st), 0);
    snprintf(stream, sizeof stream, "%llu:%llu", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino);
    setenv("JOURNAL_STREAM", stream, 1);
    log_init(&l, fds[1], LOG_LEVEL_INFO, &clock_monotonic);
    log_warnx(&l, "x");
    (void)read_lines(fds[0]);
    cr_assert_str_eq(text, "<4>x\n");
    setenv("JOURNAL_STREAM", "1:1", 1); /* stderr went elsewhere */
    log_init(&l, fds[1], LOG_LEVEL_INFO, &clock_monotonic);
    log_warnx(&l, "x");
    (void)read_lines(fds[0]);
    cr_assert_str_eq(text, "cbd: warning: x\n");
}

Test(log, clients_fill_no_disk)
{
    int fds[2];
    struct log l;
    struct virtual_clock time;
    struct clock clock;
    virtual_clock_init(&time, &clock);
    cr_assert_eq(pipe(fds), 0);
    log_init(&l, fds[1], LOG_LEVEL_INFO, &clock);
    for (int i = 0; i < 1000; i++)
        log_client(&l, "again");
    cr_assert_eq(read_lines(fds[0]), LOG_CLIENT_BURST);
    log_info(&l, "others are heard");
    cr_assert_eq(read_lines(fds[0]), 1);
    time.now_ns += 61000000000ull;
    log_client(&l, "again");
    cr_assert_eq(read_lines(fds[0]), 2);
    cr_assert(strstr(text, "980 more lines"), "%s", text);
}
