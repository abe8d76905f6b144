/* cbctl pause: no step runs until somebody resumes, or only for as long as this process lives, or
 * only while a command runs. A pause that is held is the connection's: whatever ends this process
 * ends it. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tools/cbctl.h"
#include "tools/show.h"
#include "tools/talk.h"

enum { CANT_RUN = 127 };

struct pause_state {
    struct cbctl ctl;
    bool holds;
    char **words; /* the command, or NULL */
    int end_fd;   /* with holds: readable when it is to end */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct pause_state *ps = state->input;

    (void)arg;
    switch (key) {
    case 'j':
        ps->ctl.json = true;
        return 0;
    case 'H':
        ps->holds = true;
        return 0;
    case ARGP_KEY_ARG:
        ps->words = state->argv + state->next - 1;
        state->next = state->argc; /* the rest is the command's */
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"hold", 'H', NULL, 0, "until this process ends, by Ctrl-C or otherwise", 0},
    {"json", 'j', NULL, 0, "print the daemon's JSON", 0},
    {0},
};

static const struct argp argp = {
    options,
    parse,
    "[COMMAND [ARGUMENT...]]",
    "No step runs until `cbctl resume`. Requests are taken in meanwhile, and wait.\v"
    "With COMMAND: only while that runs; its exit status is returned.",
    NULL,
    NULL,
    NULL};

static bool ask(const struct pause_state *ps, int sock, const char *argument)
{
    json_t *reply = NULL;
    int r = talk_ask(sock, "pause", argument, &reply);
    const char *error = json_string_value(json_object_get(reply, "error"));

    if (r)
        cbctl_complain(&ps->ctl, "%s", error ? error : cb_message());
    else if (!ps->words)
        show(reply, ps->ctl.json);
    json_decref(reply);
    return r == 0;
}

/* Signals that end a pause that is held, from here on: between the pause and its word for it one may
 * come already. */
static int expect_end(void)
{
    sigset_t ends;

    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigaddset(&ends, SIGHUP);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    return signalfd(-1, &ends, SFD_CLOEXEC);
}

/* Until a signal asks for the end, or the daemon is gone. */
static int hold(const struct pause_state *ps, int sock)
{
    struct pollfd p[2] = {{sock, POLLIN, 0}, {ps->end_fd, POLLIN, 0}};

    fflush(stdout);
    while (poll(p, 2, -1) < 0 && errno == EINTR)
        ;
    if (p[1].revents)
        return CBCTL_OK;
    cbctl_complain(&ps->ctl, "the daemon is gone");
    return CBCTL_FAILED;
}

static int run_command(const struct pause_state *ps)
{
    pid_t pid = fork(); /* the connection is not the child's: it is closed on exec */
    int status;

    if (pid == 0) {
        execvp(ps->words[0], ps->words);
        cbctl_complain(&ps->ctl, "can't run %s: %s", ps->words[0], strerror(errno));
        _exit(CANT_RUN);
    }
    if (pid < 0) {
        cbctl_complain(&ps->ctl, "can't make a process: %s", strerror(errno));
        return CBCTL_FAILED;
    }
    signal(SIGINT, SIG_IGN); /* Ctrl-C is for the command, which decides */
    signal(SIGQUIT, SIG_IGN);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int cmd_pause(const struct cbctl *ctl, int argc, char **argv)
{
    struct pause_state ps = {.ctl = *ctl};
    int sock, r;

    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &ps))
        return CBCTL_USAGE;
    if (ps.holds && ps.words) {
        cbctl_complain(ctl, "--hold and a command: give one of them");
        return CBCTL_USAGE;
    }
    sock = talk_open(ctl->instance);
    if (sock < 0) {
        cbctl_complain(ctl, "%s", cb_message());
        return CBCTL_FAILED;
    }
    ps.end_fd = ps.holds ? expect_end() : -1;
    if (ps.holds && ps.end_fd < 0) {
        cbctl_complain(ctl, "can't wait for signals: %s", strerror(errno));
        r = CBCTL_FAILED;
    } else if (!ask(&ps, sock, ps.holds || ps.words ? "hold" : "")) {
        r = CBCTL_FAILED;
    } else {
        r = ps.words ? run_command(&ps) : ps.holds ? hold(&ps, sock) : CBCTL_OK;
    }
    if (ps.end_fd >= 0)
        close(ps.end_fd);
    close(sock);
    return r;
}
