/* A list that ascends is cheap to check, has no id twice, and lets two of them be compared in one
 * pass. */
#include "shm/sampling.h"

#include <float.h>
#include <stdbool.h>
#include <string.h>

static_assert(CB_BIASES_MAX == 1024 && CB_IDS_MAX == 4096 && CB_TOPK_MAX == 20,
              "status.h spells them out");

static uint32_t bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static enum cb_status bad(uint32_t detail[2], enum cb_parameter which, uint32_t value)
{
    detail[0] = (uint32_t)which;
    detail[1] = value;
    return CB_BAD_PARAMETER;
}

/* Within [-most, most]; false for NaN. */
static bool is_within(float x, float most)
{
    return (bits_of(x) & 0x7fffffffu) <= bits_of(most);
}

/* Within [least, most], both above 0. */
static bool is_between(float x, float least, float most)
{
    return bits_of(x) >= bits_of(least) && bits_of(x) <= bits_of(most);
}

void cb_sampling_init(struct cb_sampling *s)
{
    *s = (struct cb_sampling){.typical_p = 1, .repetition_penalty = 1, .first_id = CB_NO_ID};
}

enum cb_status cb_sampling_check(struct cb_sampling *s, uint32_t n_vocab, uint32_t detail[2])
{
    const uint32_t minus_zero = 0x80000000u;

    if (bits_of(s->min_p) == minus_zero)
        s->min_p = 0;
    if (bits_of(s->min_p) != 0 && !is_between(s->min_p, 0x1p-149f, 1))
        return bad(detail, CB_PARAMETER_MIN_P, bits_of(s->min_p));
    if (!is_between(s->typical_p, 0x1p-149f, 1))
        return bad(detail, CB_PARAMETER_TYPICAL_P, bits_of(s->typical_p));
    if (!is_between(s->repetition_penalty, 0.001f, 1000))
        return bad(detail, CB_PARAMETER_REPETITION, bits_of(s->repetition_penalty));
    if (!is_within(s->presence_penalty, 1000))
        return bad(detail, CB_PARAMETER_PRESENCE, bits_of(s->presence_penalty));
    if (!is_within(s->frequency_penalty, 1000))
        return bad(detail, CB_PARAMETER_FREQUENCY, bits_of(s->frequency_penalty));
    if (s->first_id != CB_NO_ID && s->first_id >= n_vocab) {
        detail[0] = s->first_id;
        detail[1] = n_vocab;
        return CB_BAD_TOKEN;
    }
    if (bits_of(s->min_p) != 0 && bits_of(s->min_p) < bits_of(FLT_MIN))
        s->min_p = FLT_MIN;
    if (bits_of(s->typical_p) < bits_of(FLT_MIN))
        s->typical_p = FLT_MIN;
    return CB_OK;
}

enum cb_status cb_sampling_check_biases(const struct cb_logit_bias *biases, uint32_t n,
                                        uint32_t n_vocab, uint32_t detail[2])
{
    if (n > CB_BIASES_MAX)
        return bad(detail, CB_PARAMETER_BIASES, n);
    for (uint32_t i = 0; i < n; i++) {
        if (biases[i].id >= n_vocab) {
            detail[0] = biases[i].id;
            detail[1] = n_vocab;
            return CB_BAD_TOKEN;
        }
        if (i > 0 && biases[i].id == biases[i - 1].id)
            return bad(detail, CB_PARAMETER_BIAS_TWICE, biases[i].id);
        if (i > 0 && biases[i].id < biases[i - 1].id)
            return bad(detail, CB_PARAMETER_IDS_ORDER, biases[i].id);
        if (!is_within(biases[i].bias, 10000))
            return bad(detail, CB_PARAMETER_BIAS, bits_of(biases[i].bias));
    }
    return CB_OK;
}

enum cb_status cb_sampling_check_ids(const uint32_t *ids, uint32_t n, uint32_t n_vocab,
                                     enum cb_parameter which, uint32_t detail[2])
{
    if (n == 0 || n > CB_IDS_MAX)
        return bad(detail, which, n);
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= n_vocab) {
            detail[0] = ids[i];
            detail[1] = n_vocab;
            return CB_BAD_TOKEN;
        }
        if (i > 0 && ids[i] <= ids[i - 1])
            return bad(detail, CB_PARAMETER_IDS_ORDER, ids[i]);
    }
    return CB_OK;
}

enum cb_status cb_sampling_check_rest(const uint32_t *allowed, uint32_t n_allowed,
                                      const uint32_t *banned, uint32_t n_banned, uint32_t detail[2])
{
    uint32_t b = 0;

    for (uint32_t a = 0; a < n_allowed; a++) {
        while (b < n_banned && banned[b] < allowed[a])
            b++;
        if (b == n_banned || banned[b] != allowed[a])
            return CB_OK;
    }
    return n_allowed ? bad(detail, CB_PARAMETER_ALL_BANNED, n_allowed) : CB_OK;
}
