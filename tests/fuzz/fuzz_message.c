/* Option blocks: bytes in, a status out. What was accepted must be within every limit, and rebuilt
 * from what was understood it must be accepted again. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        options.cache_salt.bytes = parsed.cache_salt;
        options.cache_salt.n = parsed.n_cache_salt;
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
            assert(!again.n_cache_salt ||
                   memcmp(again.cache_salt, parsed.cache_salt, again.n_cache_salt) == 0);
            free(built);
        }
    }
    free(block);

    if (size >= sizeof(struct cb_request_entry)) {
        const struct cb_message_limits limits = {
            .arena_bytes = 20000, .n_slots = 8, .n_vocab = N_VOCAB, .n_context = 64};
        struct cb_request_entry e;

        memcpy(&e, data, sizeof e);
        if (cb_message_check(&e, &limits, detail) == CB_OK) {
            assert(e.slot < limits.n_slots && e.gen && e.gen <= CB_GEN_MASK && e.n_prompt);
            assert((uint64_t)e.n_prompt + e.max_new_tokens <= limits.n_context);
            assert(e.prompt_off + 4ull * e.n_prompt <= limits.arena_bytes);
            assert(!e.opt_len || e.opt_off + e.opt_len <= limits.arena_bytes);
            assert(e.temperature >= 0.0f && e.top_p > 0.0f && e.top_p <= 1.0f);
            assert(e.top_k <= limits.n_vocab);
        }
    }
    return 0;
}
