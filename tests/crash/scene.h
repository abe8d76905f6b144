/* tests/crash/scene.h - a short life of a client with everything in it, whose answers are known.
 *
 * Requests are sent together: greedy, sampled, three sequences of one prompt, one that a stop string
 * of several tokens ends, one that fills the context, and one that is cancelled half-way. All are
 * streamed to their end, compared with what an undisturbed scene gave, and freed. No Criterion: it
 * runs in processes that are killed. */
#ifndef CB_TESTS_CRASH_SCENE_H
#define CB_TESTS_CRASH_SCENE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/cbclient.h"

enum {
    SCENE_GREEDY,
    SCENE_SAMPLED,
    SCENE_CHILD,
    SCENE_STOP = SCENE_CHILD + 3,
    SCENE_FULL,
    SCENE_CANCELLED,
    SCENE_STREAMS
};
/* The daemon's: so small that SCENE_FULL fills it. */
#define SCENE_CONTEXT "64"
enum { SCENE_TOKENS = 64, SCENE_TEXT = 512 };

struct scene_answer {
    uint32_t n, ids[SCENE_TOKENS];
    uint32_t end, stop_idx, text_bytes, n_text;
    char text[SCENE_TEXT];
};

struct scene {
    struct scene_answer answers[SCENE_STREAMS];
};

/* How a scene is played. */
struct scene_play {
    const struct scene *known; /* what is right; NULL: nothing is compared */
    bool is_resumable;
    /* Called once, when most streams have a token and none has all; may be NULL. */
    void (*midway)(void *arg);
    void *arg;
    uint64_t hang_ms;
};

/* From the first submission to the last release. True if all came as it should; else why[] says what
 * did not. */
bool scene_play(struct cb_handle *h, const struct scene_play *play, char why[256]);
/* Finds out what is right, of a daemon that nobody disturbs. */
bool scene_learn(struct scene *sc, struct cb_handle *h, char why[256]);

/* What this process holds of shared memory, and of descriptors. */
struct scene_held {
    uint64_t n_fds, mapped_bytes;
};
void scene_held(struct scene_held *held);

#endif
