/* tests/system/fixture.h - the real cbd as a process, for tests: started, asked, settled, stopped.
 *
 * A test has a struct system: a run directory of its own, an instance name nobody else has, so that
 * tests may run side by side. Whatever goes wrong here fails the test (cr_assert), and the daemon's
 * log goes with the message. What takes longer than HANG_MS hangs. Processes that a test leaves
 * behind die with it.
 *
 * The programs are those of $CBD_BUILD, or of build/. */
#ifndef CB_TESTS_SYSTEM_FIXTURE_H
#define CB_TESTS_SYSTEM_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/cbclient.h"
#include "tests/util/sanitized.h"

#define HANG_MS (IS_SANITIZED ? 60000 : 10000)

/* What a daemon holds while nobody asks anything of it. */
struct figures {
    uint64_t blocks_free, lanes, lane_bytes, requests_active, requests_waiting;
    uint64_t n_fds;        /* descriptors of the process     */
    uint64_t mapped_bytes; /* that it shares with others     */
    uint64_t n_shm;        /* names of it in /dev/shm         */
};

struct system {
    char dir[48];        /* holds the run directory, the log, whatever a test puts there */
    char instance[32];   /* also a part of its names in /dev/shm */
    char log[64];        /* path: what the daemons of this test wrote to stderr */
    const char *program; /* of the daemon, below the build directory: cbd, unless a test says */
    pid_t pid;           /* of the daemon; 0: none runs */
    int out;             /* its standard output */
    struct figures start;
};

void system_init(struct system *s);
/* Ends the daemon by SIGTERM, expects exit 0 and nothing left behind, removes the directory. */
void system_fini(struct system *s);

/* Starts cbd with these settings ("--name", "value", ..., NULL) besides instance and directory, as
 * `uid`. Does not wait for anything. */
void system_spawn_as(struct system *s, uid_t uid, const char *const *settings);
/* True once it says `ready`; false if it ended before. */
bool system_is_ready(struct system *s);
/* Notes the figures to settle to, before anybody connects. */
void system_note(struct system *s);
/* The same with whoever is connected then, and idle. */
void system_note_again(struct system *s);
/* The three together, for the usual case. */
void system_start(struct system *s, const char *const *settings);
#define SETTINGS(...) ((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* Waits for its end: the exit status, or minus the signal. Fails if it takes HANG_MS. */
int system_wait(struct system *s);
void system_signal(struct system *s, int signal);
/* Replaces it by `cbctl WORDS`, an upgrade --json, and waits for its end. */
void system_upgrade(struct system *s, const char *const *words);
/* What it wrote to stderr so far; the caller's to free. */
char *system_log(const struct system *s);
void system_expect_log(const struct system *s, const char *part);

/* Connects; fails the test if it cannot. options may be NULL. */
struct cb_handle *system_open(const struct system *s, const struct cb_options *options);
/* The same with the status, for who expects one. Sets instance and directory of *options. */
int system_try_open(const struct system *s, struct cb_options *options, struct cb_handle **hp);

/* A counter of `cbctl status`, by its name in stats_table.h. */
uint64_t system_counter(const struct system *s, const char *name);
/* Waits until a counter has at least this value. */
void system_await(const struct system *s, const char *name, uint64_t least);
/* Waits until all figures are what they were at the start. */
void system_settle(const struct system *s);

/* Runs built(PROGRAM) with arguments and input (NULL: none) against this daemon. *outp, *errp
 * (may be NULL): what it wrote; the caller's to free. The exit status, or minus the signal. */
struct output {
    char *out, *err;
    int status;
};
struct output system_run(const struct system *s, const char *input, const char *program,
                         const char *const *arguments);
void output_free(struct output *o);
/* The same in two halves, for who has to do something meanwhile. */
struct running {
    pid_t pid;
    int out_fd, err_fd; /* of files */
};
struct running system_run_begin(const struct system *s, const char *input, const char *program,
                                const char *const *arguments);
struct output system_run_end(struct running *r);
/* The JSON that `cbctl -i INSTANCE WORDS... --json` prints; the caller's to json_decref. */
json_t *system_cbctl(const struct system *s, const char *const *words);

/* $CBD_BUILD/NAME into path; a NAME that is a path stays as it is. */
const char *built(const char *name, char path[512]);
/* $CBD_MODEL, or NULL and a word why the test is skipped. */
const char *default_model(void);
/* Whether this processor has what the cpu backend calls `isa`; says so if not. */
bool has_isa(const char *isa);
uint64_t now_ms(void);
void nap(void); /* a millisecond */

#endif
