/* tests/util/sim.h - the whole daemon with scripted clients in one process, from one seed.
 *
 * The daemon is the real one over the null model, on the simulation's loop; sockets are real pairs,
 * lanes real memory mapped twice. Everything else is drawn from the seed: settings, clients, their
 * requests and misdeeds, operators, the order of events, the passing of time. The same seed gives
 * the same run, to the last token: `digest` sums it up. Checked: every result equals the request
 * alone, with weights switched where they were; every accepted request ends once, and so does each
 * continuation of a prompt; no wake is missed, all audits hold, nothing is left in the end. */
#ifndef CB_TESTS_UTIL_SIM_H
#define CB_TESTS_UTIL_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "tests/util/sim_client.h"
#include "tests/util/sim_operator.h"

#define SIM_CLIENTS_MAX   8
#define SIM_OPERATORS_MAX 2
#define SIM_CONTEXT       64
#define SIM_VOCAB         520

struct sim_report {
    char error[512]; /* empty: all held */
    uint64_t digest;
    uint64_t n_turns, n_requests, n_finished, n_cancelled, n_rejected, n_deaths, n_hostile;
    uint64_t n_prefix_hits, n_evicted, n_soft_resets;
    uint64_t n_too_late, n_past_deadline,
        n_predicted;              /* refused; ended by it; accepted with a guess */
    uint64_t n_pauses;            /* clients' and operators' */
    uint64_t n_families, n_forks; /* sent; continuations that began with blocks of another */
    uint64_t n_resumed;           /* sent with tokens of another daemon */
    uint64_t n_room_waits;        /* families that waited for places in the ring of results */
    uint64_t n_switches, n_weights_refused;
    uint64_t n_mixed, n_anew, n_failed; /* requests of several epochs; computed anew; ended by it */
};

/* 0, or -1 with report->error. */
int sim_run(uint64_t seed, struct sim_report *report);

/* ---- for the clients and operators ----------------------------------------------------------- */

struct sim_oracle; /* sim_oracle.c */

struct sim {
    uint64_t seed, random;
    struct settings settings;
    struct virtual_clock time;
    struct clock clock;
    uint32_t tick_ns; /* each look at the clock finds it so much later, so that steps take time */
    struct log log;
    struct model *model;
    struct daemon *daemon;
    struct cb_status_segment status;
    struct cb_segment stats, vocab;
    int stats_fd, vocab_fd;
    struct sim_client clients[SIM_CLIENTS_MAX];
    uint32_t n_clients;
    struct sim_operator operators[SIM_OPERATORS_MAX];
    uint32_t n_operators;
    uint32_t epoch, weights[SIM_EPOCHS_MAX]; /* now; of each epoch so far */
    bool holds_time; /* sleeps return at once: for tests that are the client themselves */
    bool is_ending;  /* drain or stop was asked for */
    bool is_unread;  /* somebody went before all that he asked for was answered */
    uint64_t n_told; /* requests that were accepted, as clients were told */
    struct sim_report *report;
    struct sim_oracle *oracle;
};

/* The daemon alone, without clients, for tests that are the client: settings drawn, or fixed small
 * ones. NULL: it could not be made. */
struct sim *sim_new(uint64_t seed, bool is_drawn, struct sim_report *report);
struct sim *sim_free(struct sim *s); /* NULL is fine; returns NULL */
/* All audits; sim_fail on the first that does not hold. */
void sim_audit(struct sim *s);

void sim_fail(struct sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_note(struct sim *s, uint64_t what); /* into the digest */
uint32_t sim_draw(uint64_t *random, uint32_t n);
/* The daemon's end of a new connection: sock and death are ours to use and close. */
void sim_connect(struct sim *s, uint32_t uid, int *sockp, int *deathp);
/* A null model of the simulation's vocabulary and context. */
struct model_config sim_null_config(uint32_t page_size, uint32_t n_blocks, uint32_t tokens,
                                    uint32_t seqs);

/* ---- what a request gets alone (sim_oracle.c) ------------------------------------------------ */

struct sim_oracle *sim_oracle_new(void);
struct sim_oracle *sim_oracle_free(struct sim_oracle *o); /* NULL is fine; returns NULL */
/* All that this request gets alone, where the first n tokens are told with these epochs, and the
 * rest is of the last of them; n 0: of that in which it was sent. */
void sim_expect(struct sim *s, const struct sim_request *r, const uint32_t *epochs, uint32_t n,
                struct sim_answer *answer);
/* In which epoch this token of the request was made, if it was. */
uint32_t sim_epoch_of(const struct sim *s, const struct sim_request *r, uint32_t index);
/* Whether no request of that size can ever run here. */
bool sim_is_too_big(const struct sim *s, const struct sim_request *r);

#define SIM_WEIGHTS_TEXT 32
/* A file of weights for the null model: its bytes. */
size_t sim_weights_text(uint32_t weights, char text[SIM_WEIGHTS_TEXT]);

#endif
