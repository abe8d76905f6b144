/* tests/system/stream.h - requests of all sorts whose answers are known, for daemons that die.
 *
 * streams_learn asks them of a daemon that nobody disturbs. stream_run asks one of them again, as a
 * member of a crowd, whatever happens to the daemon meanwhile, and expects the same: every token once
 * and in order, the same end, text, planes and stops. */
#ifndef CB_TESTS_SYSTEM_STREAM_H
#define CB_TESTS_SYSTEM_STREAM_H

#include "tests/system/crowd.h"

enum { STREAM_TOKENS = 160, STREAM_KINDS = 8, STREAM_CHILDREN = 3, STREAM_TEXT = 4096 };

/* How a member takes events. */
enum stream_way { STREAM_WAIT, STREAM_POLL, STREAM_DISPATCH, STREAM_LOOP, STREAM_WAYS };

struct stream_answer {
    uint32_t n, ids[STREAM_TOKENS];
    uint32_t end, stop_idx, stop_is_id, text_bytes;
    float logprobs[STREAM_TOKENS], of_prompt;
    uint32_t best[STREAM_TOKENS];
    size_t n_text;
    char text[STREAM_TEXT];
};

struct streams {
    struct stream_answer answers[STREAM_KINDS][STREAM_CHILDREN];
};

/* On a fresh handle of a daemon that lives on. */
void streams_learn(struct streams *st, struct cb_handle *h);

/* Options that let a handle outlive any number of daemons. */
void stream_options(struct cb_options *options, enum stream_way way);

/* A request of that kind, from submission to release: it is what it was. Waits up to hang_ms. */
void stream_run(struct crowd *c, const struct streams *st, struct cb_handle *h, uint32_t kind,
                enum stream_way way, uint64_t hang_ms);

#endif
