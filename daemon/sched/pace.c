/* Moving averages over a few steps: a machine's speed changes with its neighbours, and what was
 * true a minute ago says little. */
#include "daemon/sched/pace.h"

/* Until something was measured prefill starts from the guess. */
enum { PREFILL_TOKENS_GUESS = 64, AVERAGE_OVER = 4, ENDS_OVER = 32 };
/* Tokens of a step come in these: of few of them a larger one would be too much of a step. */
enum { TILE_TOKENS = 8, TILES_TOKENS = 16, TILES_FROM = 96 };

static void average(double *mean, double value, double over)
{
    *mean = *mean == 0 ? value : *mean + (value - *mean) / over;
}

static double ns_per_token(const struct pace *p)
{
    return p->prefill_tokens > 0 ? p->prefill_ns / p->prefill_tokens : 0;
}

void pace_observe(struct pace *p, uint32_t n_tokens, uint32_t n_prefill, uint64_t model_ns)
{
    average(&p->step_ns, (double)model_ns, AVERAGE_OVER);
    /* A step of few tokens costs what reading the weights costs: it says nothing of prefill. */
    if (n_prefill < PACE_PREFILL_TOKENS_MIN)
        return;
    p->prefill_ns += (double)model_ns - p->prefill_ns / AVERAGE_OVER;
    p->prefill_tokens += (double)n_tokens - p->prefill_tokens / AVERAGE_OVER;
}

void pace_observe_end(struct pace *p, uint32_t n_generated, uint32_t limit)
{
    if (limit > 0)
        p->unused += (1 - (double)n_generated / limit - p->unused) / ENDS_OVER;
}

uint32_t pace_prefill_tokens(const struct pace *p, uint32_t step_ms_max, uint32_t n_decoding)
{
    if (step_ms_max == 0)
        return UINT32_MAX;
    if (p->prefill_ns == 0)
        return PREFILL_TOKENS_GUESS;
    double all = step_ms_max * 1e6 / ns_per_token(p);
    if (all >= UINT32_MAX)
        return UINT32_MAX;
    /* Decoding and prefill together fill whole tiles of the kernels. */
    uint32_t unit = all < TILES_FROM ? TILE_TOKENS : TILES_TOKENS;
    uint32_t n = ((uint32_t)all + unit / 2) / unit * unit;
    return n >= n_decoding + PACE_PREFILL_TOKENS_MIN ? n - n_decoding : PACE_PREFILL_TOKENS_MIN;
}

bool pace_is_known(const struct pace *p)
{
    return p->step_ns > 0;
}

double pace_prefill_ns(const struct pace *p, uint64_t n_tokens)
{
    double ns = (double)n_tokens * ns_per_token(p);
    return n_tokens > 0 && ns < p->step_ns ? p->step_ns : ns;
}

double pace_decode_ns(const struct pace *p, double n_steps)
{
    return n_steps * p->step_ns;
}

double pace_expected(const struct pace *p, uint64_t limit)
{
    return (double)limit * (1 - p->unused);
}
