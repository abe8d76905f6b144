/* A daemon small enough to be a thread of a test: one lane at a time, over the daemon's end of
 * shm/lane, with tokens by rule instead of a model. It never sleeps on the lane without the doze
 * protocol, so that bells are needed and are answered as in the real one.
 *
 * What it generates: the bytes of `script` if there is one (ids 0 to 255 are the bytes), then an
 * end of kind eos; else ids (first prompt id + index) mod n_vocab up to the limit. Stop ids and
 * stop strings end it, as do cancels. */
#ifndef CB_TESTS_CLIENT_FAKE_H
#define CB_TESTS_CLIENT_FAKE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "shm/control.h"
#include "shm/sampling.h"

enum { FAKE_VOCAB = 600, FAKE_CONTEXT = 4096 };

struct fake_config {
    int refuse;         /* a status: answer REFUSED with it, and the two numbers 7 and 8 */
    bool refuse_unread; /* refuse when HELLO has come, but without reading it */
    bool hang_up_early; /* close after HELLO */
    bool never_answer;  /* keep HELLO's sender waiting */
    uint32_t late_ms;   /* ... for so long            */
    void (*spoil)(struct cb_welcome *welcome); /* change WELCOME before it is sent */
    bool spoil_down;                           /* and make DOWN say the same */
    /* To a client that asks for names: change NAMES before it is sent. Without it they are right. */
    void (*spoil_names)(struct cb_names_record *names);
    bool keeps_names; /* sends none */
    bool is_old;      /* agrees to no feature */
    const char *script;
    uint32_t n_slots, arena_bytes, pool_bytes; /* 0: as HELLO asks, else these */
    uint32_t step_us;                          /* pause between steps */
};

struct fake;

/* What the latest accepted request asked for; the first of each list. */
enum { FAKE_LIST_MAX = 8 };
struct fake_wishes {
    uint32_t flags, planes, n_biases, n_allowed, n_banned;
    struct cb_sampling sampling;
    struct cb_logit_bias biases[FAKE_LIST_MAX];
    uint32_t allowed[FAKE_LIST_MAX], banned[FAKE_LIST_MAX];
};
void fake_wishes(struct fake *f, struct fake_wishes *w);

/* Starts it in a run directory of its own. */
struct fake *fake_start(const struct fake_config *config);
/* Stops and frees all; what runs has no end. */
void fake_stop(struct fake *f);

const char *fake_dir(const struct fake *f);

/* While held, requests are taken in but get no tokens. While deaf, not even that. */
void fake_hold(struct fake *f, bool held);
void fake_deaf(struct fake *f, bool deaf);
/* Gives n more steps to held requests. */
void fake_step(struct fake *f, uint32_t n);
/* As kill -9: the socket closes, nothing more is stored. Returns after it has happened. */
void fake_kill(struct fake *f);
/* Closes the lane with this reason, rings, then hangs up. */
void fake_close_lane(struct fake *f, uint32_t closed);
/* Sets notice bits. */
void fake_notice(struct fake *f, uint32_t bits);
/* Tokens and ends appear in the slot table, but no entry and no bell tells of them: a wake lost by
 * a bug, or a daemon killed in between. Only fake_kill may follow a muted end. */
void fake_mute(struct fake *f, bool mute);

/* How many lanes by name it had; the names are gone once it has READY. */
uint32_t fake_n_named(const struct fake *f);
uint64_t fake_n_bells(const struct fake *f); /* BELL records received */

#endif
