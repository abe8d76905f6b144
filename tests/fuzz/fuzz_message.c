/* Option blocks: bytes in, a status out. What was accepted must be within every limit, and rebuilt
 * from what was understood it must be accepted again. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/control.h"
#include "shm/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_ids(const uint32_t *ids, uint32_t n, uint32_t n_vocab)
{
    assert(n <= CB_IDS_MAX);
    for (uint32_t i = 0; i < n; i++)
        assert(ids[i] < n_vocab && (i == 0 || ids[i] > ids[i - 1]));
}

static void check_wishes(const struct cb_message_parsed *p, uint32_t n_vocab)
{
    const struct cb_sampling *s = &p->sampling;

    assert(s->min_p >= 0 && s->min_p <= 1 && s->typical_p > 0 && s->typical_p <= 1);
    assert(s->repetition_penalty >= 0.001f && s->repetition_penalty <= 1000);
    assert(s->presence_penalty >= -1000 && s->presence_penalty <= 1000);
    assert(s->frequency_penalty >= -1000 && s->frequency_penalty <= 1000);
    assert(s->first_id == CB_NO_ID || s->first_id < n_vocab);
    assert(p->n_biases <= CB_BIASES_MAX);
    for (uint32_t i = 0; i < p->n_biases; i++) {
        assert(p->biases[i].id < n_vocab && (i == 0 || p->biases[i].id > p->biases[i - 1].id));
        assert(p->biases[i].bias >= -10000 && p->biases[i].bias <= 10000);
    }
    check_ids(p->allowed_ids, p->n_allowed_ids, n_vocab);
    check_ids(p->banned_ids, p->n_banned_ids, n_vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cb_message_parsed parsed, again;
    enum { N_VOCAB = 1000 };
    uint32_t detail[2];
    unsigned char *block;
    struct cb_message_options options = {0};
    size_t bytes;

    if (size > CB_OPTIONS_MAX)
        return 0;
    /* Exactly as large as said, so that a read past the end is found. */
    block = malloc(size ? size : 1);
    assert(block);
    memcpy(block, data, size);
    if (cb_message_parse_options(block, size, N_VOCAB, &parsed, detail) == CB_OK) {
        assert(parsed.n_stop_ids <= CB_STOP_IDS_MAX && parsed.stops.n_stops <= CB_STOPS_MAX);
        for (uint32_t i = 0; i < parsed.n_stop_ids; i++)
            assert(parsed.stop_ids[i] < N_VOCAB);
        assert(parsed.n_cache_salt <= CB_SALT_MAX);
        check_wishes(&parsed, N_VOCAB);
        options.sampling = &parsed.sampling;
        options.biases = parsed.biases;
        options.n_biases = parsed.n_biases;
        options.allowed_ids = parsed.allowed_ids;
        options.n_allowed_ids = parsed.n_allowed_ids;
        options.banned_ids = parsed.banned_ids;
        options.n_banned_ids = parsed.n_banned_ids;
        options.cache_salt.bytes = parsed.cache_salt;
        options.cache_salt.n = parsed.n_cache_salt;
        options.resume = parsed.has_resume ? &parsed.resume : NULL;
        options.stop_ids = parsed.stop_ids;
        options.n_stop_ids = parsed.n_stop_ids;
        bytes = cb_message_options_bytes(&options);
        if (bytes) {
            unsigned char *built = malloc(bytes);

            assert(built);
            cb_message_options_build(&options, built);
            assert(cb_message_parse_options(built, bytes, N_VOCAB, &again, detail) == CB_OK);
            assert(again.n_stop_ids == parsed.n_stop_ids);
            assert(again.n_cache_salt == parsed.n_cache_salt);
            assert(again.has_resume == parsed.has_resume &&
                   !memcmp(&again.resume, &parsed.resume, sizeof again.resume));
            assert(!memcmp(&again.sampling, &parsed.sampling, sizeof again.sampling));
            assert(again.n_biases == parsed.n_biases);
            assert(again.n_allowed_ids == parsed.n_allowed_ids);
            assert(again.n_banned_ids == parsed.n_banned_ids);
            assert(!again.n_cache_salt ||
                   memcmp(again.cache_salt, parsed.cache_salt, again.n_cache_salt) == 0);
            free(built);
        }
    }
    free(block);

    if (size >= sizeof(struct cb_request_entry)) {
        const struct cb_message_limits limits = {.arena_bytes = 20000,
                                                 .n_slots = 8,
                                                 .n_vocab = N_VOCAB,
                                                 .n_context = 64,
                                                 .features = CB_FEATURES};
        struct cb_request_entry e;

        memcpy(&e, data, sizeof e);
        if (cb_message_check(&e, &limits, detail) == CB_OK) {
            assert(e.slot < limits.n_slots && e.gen && e.gen <= CB_GEN_MASK && e.n_prompt);
            assert(e.resume_from < e.n_prompt && e.resume_from <= e.max_new_tokens);
            assert((uint64_t)cb_entry_prompt(&e) + e.max_new_tokens <= limits.n_context);
            assert(e.prompt_off + 4ull * e.n_prompt <= limits.arena_bytes);
            assert(!e.opt_len || e.opt_off + e.opt_len <= limits.arena_bytes);
            assert(e.temperature >= 0.0f && e.top_p > 0.0f && e.top_p <= 1.0f);
            assert(e.top_k <= limits.n_vocab);
            assert(cb_planes_k(e.planes) <= CB_TOPK_MAX);
        }
    }
    return 0;
}
