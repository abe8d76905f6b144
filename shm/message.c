/* All checks are here and nowhere else, on copies that no other process can reach. Offsets are
 * compared by subtraction, since a sum of two foreign numbers may wrap; sums are made in 64 bits of
 * 32-bit numbers only. */
#include "shm/message.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <stdbool.h>
#include <string.h>

#include "shm/control.h"
#include "shm/utf8.h"

static size_t pad(size_t n, size_t align)
{
    return (n + align - 1) & ~(align - 1);
}

static enum cb_status bad(uint32_t detail[2], enum cb_status status, uint64_t a, uint64_t b)
{
    detail[0] = a > UINT32_MAX ? UINT32_MAX : (uint32_t)a;
    detail[1] = b > UINT32_MAX ? UINT32_MAX : (uint32_t)b;
    return status;
}

/* ---- client ---------------------------------------------------------------------------------- */

void cb_message_init(struct cb_request_entry *entry)
{
    *entry = (struct cb_request_entry){
        .op = CB_OP_GENERATE, .n_children = 1, .top_p = 1.0f, .max_new_tokens = CB_NO_LIMIT};
}

static size_t stops_bytes(const struct cb_message_options *options)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < options->n_stops; i++)
        bytes += 4 + pad(options->stops[i].n, 4);
    return bytes;
}

/* Bytes of a record with a value of n bytes; without a value there is none. */
static size_t record_bytes(size_t n)
{
    return n ? sizeof(struct cb_option_head) + pad(n, 8) : 0;
}

size_t cb_message_options_bytes(const struct cb_message_options *options)
{
    return record_bytes(4ull * options->n_stop_ids) + record_bytes(stops_bytes(options)) +
           record_bytes(options->cache_salt.n) +
           record_bytes(options->sampling ? sizeof *options->sampling : 0) +
           record_bytes(options->n_biases * sizeof *options->biases) +
           record_bytes(4ull * options->n_allowed_ids) +
           record_bytes(4ull * options->n_banned_ids) +
           record_bytes(options->resume ? sizeof *options->resume : 0);
}

static unsigned char *build_head(unsigned char *at, uint16_t type, size_t bytes)
{
    struct cb_option_head head = {.type = type, .bytes = (uint32_t)bytes};

    memcpy(at, &head, sizeof head);
    return at + sizeof head;
}

/* A whole record, unless it would be empty. */
static unsigned char *build_record(unsigned char *at, uint16_t type, const void *value,
                                   size_t bytes)
{
    if (!bytes)
        return at;
    at = build_head(at, type, bytes);
    memcpy(at, value, bytes);
    return at + pad(bytes, 8);
}

void cb_message_options_build(const struct cb_message_options *options, void *block)
{
    unsigned char *at = block;

    memset(block, 0, cb_message_options_bytes(options));
    at = build_record(at, CB_OPTION_STOP_IDS, options->stop_ids, 4ull * options->n_stop_ids);
    if (options->n_stops) {
        at = build_head(at, CB_OPTION_STOP_STRINGS, stops_bytes(options));
        for (uint32_t i = 0; i < options->n_stops; i++) {
            uint32_t n = (uint32_t)options->stops[i].n;

            memcpy(at, &n, sizeof n);
            memcpy(at + 4, options->stops[i].bytes, n);
            at += 4 + pad(n, 4);
        }
        at += pad(stops_bytes(options), 8) - stops_bytes(options);
    }
    if (options->resume)
        at = build_record(at, CB_OPTION_RESUME, options->resume, sizeof *options->resume);
    at = build_record(at, CB_OPTION_CACHE_SALT, options->cache_salt.bytes, options->cache_salt.n);
    if (options->sampling)
        at = build_record(at, CB_OPTION_SAMPLING, options->sampling, sizeof *options->sampling);
    at = build_record(at, CB_OPTION_BIASES, options->biases,
                      options->n_biases * sizeof *options->biases);
    at = build_record(at, CB_OPTION_ALLOWED_IDS, options->allowed_ids,
                      4ull * options->n_allowed_ids);
    build_record(at, CB_OPTION_BANNED_IDS, options->banned_ids, 4ull * options->n_banned_ids);
}

/* ---- daemon: the entry ----------------------------------------------------------------------- */

static enum cb_status check_planes(uint32_t planes, uint64_t features, uint32_t detail[2])
{
    uint32_t understood = CB_PLANE_TIMES;
    uint32_t k = planes >> 16;

    if (features & CB_FEATURE_LOGPROBS)
        understood |= CB_PLANE_LOGPROBS | CB_PLANE_TOPK | CB_PLANE_PROMPT;
    if (features & CB_FEATURE_EPOCHS)
        understood |= CB_PLANE_EPOCHS;
    if (planes & 0xffffu & ~understood)
        return bad(detail, CB_BAD_PLANES, planes, 0);
    if (planes & CB_PLANE_TOPK && (k == 0 || k > CB_TOPK_MAX))
        return bad(detail, CB_BAD_PARAMETER, CB_PARAMETER_TOP_LOGPROBS, k);
    if (planes & CB_PLANE_TOPK ? !(planes & CB_PLANE_LOGPROBS) : k != 0)
        return bad(detail, CB_BAD_PLANES, planes, 0);
    return CB_OK;
}

/* Of its slots, the first is one of the lane's. */
static enum cb_status check_children(const struct cb_request_entry *e,
                                     const struct cb_message_limits *limits, uint32_t detail[2])
{
    if (e->n_children == 0 || e->n_children > CB_CHILDREN_MAX)
        return bad(detail, CB_BAD_OPTION, e->n_children, 0);
    if (!(limits->features & CB_FEATURE_CHILDREN) && (e->n_children > 1 || e->child_idx))
        return bad(detail, CB_BAD_OPTION, e->child_idx ? e->child_idx : e->n_children, 0);
    if (e->child_idx > UINT32_MAX - e->n_children)
        return bad(detail, CB_BAD_OPTION, e->child_idx, 0);
    if (e->n_children > limits->n_slots - e->slot)
        return bad(detail, CB_BAD_SLOT, (uint64_t)e->slot + e->n_children - 1, limits->n_slots);
    return CB_OK;
}

static enum cb_status check_shape(const struct cb_request_entry *e,
                                  const struct cb_message_limits *limits, uint32_t detail[2])
{
    enum cb_status status;

    if (e->op != CB_OP_GENERATE)
        return bad(detail, CB_BAD_OPTION, e->op, 0);
    if (e->flags & CB_FLAGS_MUST & ~CB_FLAGS_UNDERSTOOD)
        return bad(detail, CB_BAD_OPTION, e->flags & CB_FLAGS_MUST & ~CB_FLAGS_UNDERSTOOD, 0);
    if (e->reserved_half)
        return bad(detail, CB_BAD_OPTION, e->reserved_half, 0);
    for (size_t i = 0; i < sizeof e->reserved / sizeof e->reserved[0]; i++) {
        if (e->reserved[i])
            return bad(detail, CB_BAD_OPTION, e->reserved[i], 0);
    }
    if (e->slot >= limits->n_slots)
        return bad(detail, CB_BAD_SLOT, e->slot, limits->n_slots);
    if (e->gen == 0 || e->gen > CB_GEN_MASK)
        return bad(detail, CB_BAD_GENERATION, e->gen, 0);
    status = check_children(e, limits, detail);
    if (status)
        return status;
    if (e->resume_from && (!(limits->features & CB_FEATURE_RESUME) || e->n_children > 1))
        return bad(detail, CB_BAD_OPTION, e->resume_from, e->n_children);
    if (e->priority > UINT8_MAX)
        return bad(detail, CB_BAD_OPTION, e->priority, 0);
    return check_planes(e->planes, limits->features, detail);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* By their bits, which order positive numbers as they are: our caller may be a thread to which
 * denormal numbers count as zero, so that a comparison would refuse what the library let pass. */
static enum cb_status check_sampling(struct cb_request_entry *e,
                                     const struct cb_message_limits *limits, uint32_t detail[2])
{
    const uint32_t minus_zero = 0x80000000, one = 0x3f800000, infinite = 0x7f800000;

    if (bits_of(e->temperature) == minus_zero)
        e->temperature = 0;
    if (bits_of(e->temperature) >= infinite)
        return bad(detail, CB_BAD_TEMPERATURE, 0, 0);
    if (bits_of(e->top_p) == 0 || bits_of(e->top_p) > one)
        return bad(detail, CB_BAD_TOP_P, 0, 0);
    /* Both keep the best token alone. */
    if (bits_of(e->top_p) < bits_of(FLT_MIN))
        e->top_p = FLT_MIN;
    if (e->top_k > limits->n_vocab)
        e->top_k = limits->n_vocab;
    return CB_OK;
}

static enum cb_status check_lengths(struct cb_request_entry *e,
                                    const struct cb_message_limits *limits, uint32_t detail[2])
{
    uint64_t prompt_bytes = 4ull * e->n_prompt;
    uint64_t n_total;

    if (e->n_prompt == 0)
        return bad(detail, CB_EMPTY_PROMPT, 0, 0);
    if (e->resume_from >= e->n_prompt)
        return bad(detail, CB_BAD_OPTION, e->resume_from, e->n_prompt);
    n_total = cb_entry_prompt(e);
    if (e->max_new_tokens != CB_NO_LIMIT)
        n_total += e->max_new_tokens;
    if (n_total > limits->n_context)
        return bad(detail, CB_TOO_LONG, n_total, limits->n_context);
    if (e->max_new_tokens == CB_NO_LIMIT)
        e->max_new_tokens = limits->n_context - cb_entry_prompt(e);
    if (e->resume_from > e->max_new_tokens)
        return bad(detail, CB_BAD_OPTION, e->resume_from, e->max_new_tokens);
    if (e->prompt_off % 4 || e->prompt_off > limits->arena_bytes ||
        prompt_bytes > limits->arena_bytes - e->prompt_off)
        return bad(detail, CB_BAD_BOUNDS, 0, 0);
    if (e->opt_len == 0)
        return CB_OK;
    if (e->opt_len > CB_OPTIONS_MAX || e->opt_len % 8 || e->opt_off % 8 ||
        e->opt_off > limits->arena_bytes || e->opt_len > limits->arena_bytes - e->opt_off)
        return bad(detail, CB_BAD_BOUNDS, 0, 0);
    return CB_OK;
}

enum cb_status cb_message_check(struct cb_request_entry *entry,
                                const struct cb_message_limits *limits, uint32_t detail[2])
{
    enum cb_status status = check_shape(entry, limits, detail);

    if (status == CB_OK)
        status = check_lengths(entry, limits, detail);
    if (status == CB_OK)
        status = check_sampling(entry, limits, detail);
    return status;
}

enum cb_status cb_message_check_ids(const uint32_t *ids, uint32_t n, uint32_t n_vocab,
                                    uint32_t detail[2])
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= n_vocab)
            return bad(detail, CB_BAD_TOKEN, ids[i], n_vocab);
    }
    return CB_OK;
}

/* ---- daemon: the option block ---------------------------------------------------------------- */

static bool is_zero(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bytes[i])
            return false;
    }
    return true;
}

static enum cb_status parse_stop_ids(const unsigned char *value, size_t bytes, uint32_t n_vocab,
                                     struct cb_message_parsed *parsed, uint32_t detail[2])
{
    size_t n = bytes / 4;

    if (bytes % 4)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_STOP_IDS, 0);
    if (n > CB_STOP_IDS_MAX)
        return bad(detail, CB_BAD_STOP, n, CB_STOP_IDS_MAX);
    parsed->stop_ids = (const uint32_t *)(const void *)value;
    parsed->n_stop_ids = (uint32_t)n;
    return cb_message_check_ids(parsed->stop_ids, parsed->n_stop_ids, n_vocab, detail);
}

static enum cb_status parse_stops(const unsigned char *value, size_t bytes,
                                  struct cb_message_parsed *parsed, uint32_t detail[2])
{
    size_t off = 0;

    while (off < bytes) {
        uint32_t n;

        if (bytes - off < sizeof n)
            return bad(detail, CB_BAD_OPTION, CB_OPTION_STOP_STRINGS, 0);
        memcpy(&n, value + off, sizeof n);
        off += sizeof n;
        /* The limit first: then the padding can't wrap. */
        if (n == 0 || n > CB_STOP_BYTES_MAX)
            return bad(detail, CB_BAD_STOP, n, CB_STOP_BYTES_MAX);
        if (pad(n, 4) > bytes - off || !is_zero(value + off + n, pad(n, 4) - n))
            return bad(detail, CB_BAD_OPTION, CB_OPTION_STOP_STRINGS, 0);
        switch (cb_stops_add(&parsed->stops, value + off, n)) {
        case 0:
            break;
        case -EILSEQ:
            return bad(detail, CB_BAD_UTF8, cb_utf8_valid(value + off, n), 0);
        default:
            return bad(detail, CB_BAD_STOP, CB_STOPS_MAX + 1, CB_STOPS_MAX);
        }
        off += pad(n, 4);
    }
    return CB_OK;
}

static enum cb_status parse_cache_salt(const unsigned char *value, size_t bytes,
                                       struct cb_message_parsed *parsed, uint32_t detail[2])
{
    if (bytes == 0 || bytes > CB_SALT_MAX)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_CACHE_SALT, 0);
    parsed->cache_salt = value;
    parsed->n_cache_salt = (uint32_t)bytes;
    return CB_OK;
}

static enum cb_status parse_sampling(const unsigned char *value, size_t bytes, uint32_t n_vocab,
                                     struct cb_message_parsed *parsed, uint32_t detail[2])
{
    if (bytes != sizeof parsed->sampling)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_SAMPLING, 0);
    memcpy(&parsed->sampling, value, bytes);
    return cb_sampling_check(&parsed->sampling, n_vocab, detail);
}

static enum cb_status parse_biases(const unsigned char *value, size_t bytes, uint32_t n_vocab,
                                   struct cb_message_parsed *parsed, uint32_t detail[2])
{
    if (bytes % sizeof *parsed->biases || bytes == 0)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_BIASES, 0);
    parsed->biases = (const struct cb_logit_bias *)(const void *)value;
    parsed->n_biases = (uint32_t)(bytes / sizeof *parsed->biases);
    return cb_sampling_check_biases(parsed->biases, parsed->n_biases, n_vocab, detail);
}

static enum cb_status parse_ids(uint16_t type, const unsigned char *value, size_t bytes,
                                uint32_t n_vocab, struct cb_message_parsed *parsed,
                                uint32_t detail[2])
{
    const uint32_t *ids = (const uint32_t *)(const void *)value;
    uint32_t n = (uint32_t)(bytes / sizeof *ids);

    if (bytes % sizeof *ids)
        return bad(detail, CB_BAD_OPTION, type, 0);
    if (type == CB_OPTION_ALLOWED_IDS) {
        parsed->allowed_ids = ids;
        parsed->n_allowed_ids = n;
        return cb_sampling_check_ids(ids, n, n_vocab, CB_PARAMETER_ALLOWED, detail);
    }
    parsed->banned_ids = ids;
    parsed->n_banned_ids = n;
    return cb_sampling_check_ids(ids, n, n_vocab, CB_PARAMETER_BANNED, detail);
}

static enum cb_status parse_resume(const unsigned char *value, size_t bytes,
                                   struct cb_message_parsed *parsed, uint32_t detail[2])
{
    if (bytes != sizeof parsed->resume)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_RESUME, 0);
    memcpy(&parsed->resume, value, bytes);
    parsed->has_resume = true;
    if (parsed->resume.reserved || parsed->resume.child_idx == UINT32_MAX)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_RESUME, parsed->resume.child_idx);
    return CB_OK;
}

static enum cb_status parse_option(uint16_t type, const unsigned char *value, size_t bytes,
                                   uint32_t n_vocab, struct cb_message_parsed *parsed,
                                   uint32_t detail[2])
{
    switch (type) {
    case CB_OPTION_STOP_IDS:
        return parse_stop_ids(value, bytes, n_vocab, parsed, detail);
    case CB_OPTION_STOP_STRINGS:
        return parse_stops(value, bytes, parsed, detail);
    case CB_OPTION_RESUME:
        return parse_resume(value, bytes, parsed, detail);
    case CB_OPTION_CACHE_SALT:
        return parse_cache_salt(value, bytes, parsed, detail);
    case CB_OPTION_SAMPLING:
        return parse_sampling(value, bytes, n_vocab, parsed, detail);
    case CB_OPTION_BIASES:
        return parse_biases(value, bytes, n_vocab, parsed, detail);
    case CB_OPTION_ALLOWED_IDS:
    case CB_OPTION_BANNED_IDS:
        return parse_ids(type, value, bytes, n_vocab, parsed, detail);
    default:
        if (type & CB_OPTION_MUST)
            return bad(detail, CB_BAD_OPTION, type, 0);
        return CB_OK;
    }
}

void cb_message_parsed_init(struct cb_message_parsed *parsed)
{
    parsed->stop_ids = NULL;
    parsed->n_stop_ids = 0;
    parsed->cache_salt = NULL;
    parsed->n_cache_salt = 0;
    parsed->biases = NULL;
    parsed->allowed_ids = parsed->banned_ids = NULL;
    parsed->n_biases = parsed->n_allowed_ids = parsed->n_banned_ids = 0;
    parsed->has_resume = false;
    parsed->resume = (struct cb_resume){.child_idx = 0};
    cb_sampling_init(&parsed->sampling);
    cb_stops_init(&parsed->stops);
}

enum cb_status cb_message_parse_options(const void *block, size_t bytes, uint32_t n_vocab,
                                        struct cb_message_parsed *parsed, uint32_t detail[2])
{
    const unsigned char *at = block;
    uint8_t seen[65536 / 8] = {0}; /* a bit a type */
    size_t left = bytes;

    assert(((uintptr_t)block & 7) == 0);
    cb_message_parsed_init(parsed);
    while (left) {
        enum cb_status status;
        struct cb_option_head head;

        if (left < sizeof head)
            return bad(detail, CB_BAD_OPTION, 0, 0);
        memcpy(&head, at, sizeof head);
        at += sizeof head;
        left -= sizeof head;
        if (head.reserved || seen[head.type / 8] & 1u << head.type % 8)
            return bad(detail, CB_BAD_OPTION, head.type, 0);
        seen[head.type / 8] |= (uint8_t)(1u << head.type % 8);
        if (pad(head.bytes, 8) > left || !is_zero(at + head.bytes, pad(head.bytes, 8) - head.bytes))
            return bad(detail, CB_BAD_OPTION, head.type, 0);
        status = parse_option(head.type, at, head.bytes, n_vocab, parsed, detail);
        if (status != CB_OK)
            return status;
        at += pad(head.bytes, 8);
        left -= pad(head.bytes, 8);
    }
    return cb_sampling_check_rest(parsed->allowed_ids, parsed->n_allowed_ids, parsed->banned_ids,
                                  parsed->n_banned_ids, detail);
}

enum cb_status cb_message_check_resume(const struct cb_request_entry *entry,
                                       const struct cb_message_parsed *parsed, uint64_t features,
                                       const uint64_t fingerprint[2], uint32_t detail[2])
{
    if (!parsed->has_resume)
        return entry->resume_from ? bad(detail, CB_BAD_OPTION, entry->resume_from, 0) : CB_OK;
    if (!(features & CB_FEATURE_RESUME))
        return bad(detail, CB_BAD_OPTION, CB_OPTION_RESUME, 0);
    if (entry->n_children > 1 || entry->child_idx)
        return bad(detail, CB_BAD_OPTION, CB_OPTION_RESUME, entry->n_children);
    if (memcmp(parsed->resume.fingerprint, fingerprint, sizeof parsed->resume.fingerprint) != 0)
        return bad(detail, CB_CHANGED, 0, 0);
    return CB_OK;
}
