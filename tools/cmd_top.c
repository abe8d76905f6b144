/* cbctl top: what the STATUS page says, again and again. The lines are view.c's; here is where they
 * go: a terminal, or plain text for programs. The terminal is read by read(2), not by curses, which
 * can't tell a key that is not there from a terminal that is gone, and would spin on the latter. */
#include <argp.h>
#include <curses.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <term.h>
#include <time.h>
#include <unistd.h>

#include "tools/cbctl.h"
#include "tools/view.h"

struct top {
    struct cbctl ctl;
    bool batch;
    uint64_t n_frames; /* 0: until something ends it */
    double delay_s;
    struct watch looks[2]; /* the last one and the one before */
    unsigned n_looks;
    struct view view;
};

/* Takes a look and makes the lines; false: there is no daemon (any more), which was told. */
static bool next_frame(struct top *t, char why[WATCH_WHY_MAX])
{
    struct watch *now = &t->looks[t->n_looks % 2];
    const struct watch *earlier = t->n_looks ? &t->looks[(t->n_looks + 1) % 2] : NULL;

    if (watch_take(t->ctl.instance, now, why))
        return false;
    view_make(&t->view, now, earlier);
    t->n_looks++;
    return true;
}

static int complain_gone(const struct top *t, const char *why)
{
    cbctl_complain(&t->ctl, "%s%s", t->n_looks ? "the daemon has ended: " : "", why);
    return CBCTL_FAILED;
}

/* ---- plain text ------------------------------------------------------------------------------ */

static int run_batch(struct top *t)
{
    char why[WATCH_WHY_MAX];
    struct timespec pause = {.tv_sec = (time_t)t->delay_s};

    pause.tv_nsec = (long)((t->delay_s - (double)pause.tv_sec) * 1e9);
    for (uint64_t i = 0; t->n_frames == 0 || i < t->n_frames; i++) {
        if (i > 0)
            nanosleep(&pause, NULL);
        if (!next_frame(t, why))
            return complain_gone(t, why);
        if (i > 0)
            putchar('\n');
        for (unsigned k = 0; k < t->view.n_rows; k++)
            puts(t->view.rows[k]);
        if (fflush(stdout))
            return CBCTL_FAILED; /* told by who called us */
    }
    return CBCTL_OK;
}

/* ---- a terminal ------------------------------------------------------------------------------ */

/* Whether lines can be put where they belong on it. */
static bool is_fit(const struct top *t)
{
    const char *type = getenv("TERM");
    int err = 0;
    bool fit;

    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
        cbctl_complain(&t->ctl, "standard input and output are no terminal; --batch prints plain "
                                "text");
        return false;
    }
    if (!type || !*type) {
        cbctl_complain(&t->ctl, "TERM is not set, so the terminal's type is not known; set it, or "
                                "use --batch");
        return false;
    }
    if (setupterm(NULL, STDOUT_FILENO, &err) != OK) {
        cbctl_complain(&t->ctl,
                       "nothing is known of a terminal of type \"%s\" (TERM); correct it, or use "
                       "--batch",
                       type);
        return false;
    }
    fit = cursor_address && clear_screen;
    del_curterm(cur_term);
    if (!fit)
        cbctl_complain(&t->ctl,
                       "a terminal of type \"%s\" (TERM) can't move its cursor; --batch prints "
                       "plain text",
                       type);
    return fit;
}

static void draw(const struct top *t)
{
    struct winsize size;
    int width;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col &&
        is_term_resized(size.ws_row, size.ws_col))
        resizeterm(size.ws_row, size.ws_col);
    width = COLS;
    erase();
    for (int i = 0; i < (int)t->view.n_rows && i < LINES; i++)
        mvaddnstr(i, 0, t->view.rows[i], width);
    if (LINES > (int)t->view.n_rows + 1)
        mvaddnstr(LINES - 1, 0, "q: quit", width);
    refresh();
}

/* Whether the keys that are there ask for the end, or there can be no more of them. */
static bool read_keys(void)
{
    char keys[64];
    ssize_t n = read(STDIN_FILENO, keys, sizeof keys);

    if (n < 0)
        return errno != EINTR && errno != EAGAIN;
    return n == 0 || memchr(keys, 'q', (size_t)n) || memchr(keys, 'Q', (size_t)n);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000u + (uint64_t)t.tv_nsec / 1000000u;
}

/* Shows what there is until it is time for the next look; true: it was asked to end. */
static bool stay(const struct top *t, int signal_fd)
{
    uint64_t until_ms = now_ms() + (uint64_t)(t->delay_s * 1000);

    for (;;) {
        struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                             {.fd = signal_fd, .events = POLLIN}};
        uint64_t at_ms = now_ms();
        int r;

        draw(t);
        if (at_ms >= until_ms)
            return false;
        /* Cut short by SIGWINCH, for which curses has a handler: it is drawn again. */
        r = poll(p, 2, (int)(until_ms - at_ms));
        if (r > 0 && (p[1].revents || (p[0].revents & ~POLLIN) || read_keys()))
            return true;
    }
}

static int run_terminal(struct top *t)
{
    char why[WATCH_WHY_MAX];
    sigset_t ends;
    SCREEN *screen;
    int signal_fd, r = CBCTL_OK;

    if (!is_fit(t))
        return CBCTL_FAILED;
    /* Before there is a screen: what it would show is told where it can be read. */
    if (!next_frame(t, why))
        return complain_gone(t, why);
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal_fd = signalfd(-1, &ends, SFD_CLOEXEC);
    screen = signal_fd < 0 ? NULL : newterm(NULL, stdout, stdin);
    if (!screen) {
        cbctl_complain(&t->ctl, "can't take over the terminal: %s", strerror(errno));
        r = CBCTL_FAILED;
    } else {
        cbreak();
        noecho();
        curs_set(0);
        while (r == CBCTL_OK && !stay(t, signal_fd) &&
               (t->n_frames == 0 || t->n_looks < t->n_frames))
            r = next_frame(t, why) ? CBCTL_OK : CBCTL_FAILED;
        endwin();
        delscreen(screen);
        if (r)
            complain_gone(t, why);
    }
    if (signal_fd >= 0)
        close(signal_fd);
    return r;
}

/* ---- the command ----------------------------------------------------------------------------- */

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct top *t = state->input;

    switch (key) {
    case 'b':
        t->batch = true;
        return 0;
    case '1':
        t->batch = true;
        t->n_frames = 1;
        return 0;
    case 'n':
        return cbctl_whole(&t->ctl, "-n", arg, 1, 1000000000, &t->n_frames) ? 0 : EINVAL;
    case 'd':
        return cbctl_number(&t->ctl, "-d", arg, 0.05, 86400, &t->delay_s) ? 0 : EINVAL;
    case ARGP_KEY_ARG:
        argp_usage(state);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_top(const struct cbctl *ctl, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"batch", 'b', NULL, 0, "plain text instead of a screen", 0},
        {"once", '1', NULL, 0, "plain text, once: --batch -n 1", 0},
        {"iterations", 'n', "N", 0, "end after N looks (default: none)", 0},
        {"delay", 'd', "SECONDS", 0, "time between looks (1)", 0},
        {0},
    };
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "Rates, load and latencies of the daemon, again and again, "
                                     "read from its STATUS page: the daemon is not asked. q ends.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct top *t = calloc(1, sizeof *t);
    int r;

    if (!t) {
        cbctl_complain(ctl, "out of memory");
        return CBCTL_FAILED;
    }
    t->ctl = *ctl;
    t->delay_s = 1;
    if (argp_parse(&argp, argc, argv, 0, NULL, t)) {
        r = CBCTL_USAGE;
    } else if (t->ctl.json) {
        cbctl_complain(ctl, "there is no --json; `cbctl status --json` has the same counters");
        r = CBCTL_USAGE;
    } else {
        r = t->batch ? run_batch(t) : run_terminal(t);
    }
    free(t);
    return r;
}
