/* Limits, and the comparison that goes by them. */
#include "tests/kernels/ops_side.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"

enum { MANY = 256 };

const struct ops_limit ops_limits_f32[OPS_N_PATHS] = {
    [OPS_EMBED] = {{0, 0}, {1e-14, 1e-6}},
    [OPS_NORM] = {{0, 0}, {1e-12, 1e-5}},
    [OPS_LINEAR] = {{4.1e-14, 1.1e-6}, {1e-11, 1e-4}},
    [OPS_LINEAR_QUANTISED] = {{4e-14, 1e-6}, {1e-11, 1e-4}},
    [OPS_LINEAR_HEAVY] = {{2.9e-14, 9.1e-7}, {1e-11, 1e-4}},
    [OPS_GATED] = {{1.1e-13, 2.4e-6}, {1e-11, 1e-4}},
    [OPS_GATED_QUANTISED] = {{1.1e-13, 2.7e-6}, {1e-11, 1e-4}},
    [OPS_GATED_HEAVY] = {{8.7e-14, 2.8e-6}, {1e-11, 1e-4}},
    [OPS_HEAD] = {{3.7e-14, 1.2e-6}, {1e-11, 1e-4}},
    [OPS_HEAD_QUANTISED] = {{1.5e-14, 8.1e-7}, {1e-11, 1e-4}},
    [OPS_HEAD_HEAVY] = {{3.2e-14, 1.2e-6}, {1e-11, 1e-4}},
    [OPS_QUERY] = {{5.4e-15, 9.1e-7}, {1e-11, 1e-4}},
    [OPS_QUERY_QUANTISED] = {{8e-15, 8e-7}, {1e-11, 1e-4}},
    [OPS_QUERY_HEAVY] = {{2.2e-14, 1.5e-6}, {1e-11, 1e-4}},
    [OPS_VALUE_F32] = {{4.4e-15, 6.4e-7}, {1e-11, 1e-4}},
    [OPS_VALUE_BF16] = {{3.1e-8, 0.0083}, {5e-6, 7.8e-3}},
    [OPS_VALUE_U8] = {{5.4e-7, 0.021}, {2e-4, 0.031}},
    [OPS_VALUE_F32_QUANTISED] = {{1.8e-15, 4.7e-7}, {1e-11, 1e-4}},
    [OPS_VALUE_BF16_QUANTISED] = {{1.8e-8, 0.013}, {5e-6, 7.8e-3}},
    [OPS_VALUE_U8_QUANTISED] = {{4.5e-8, 0.027}, {2e-4, 0.031}},
    [OPS_VALUE_F32_HEAVY] = {{1.1e-14, 7e-7}, {1e-11, 1e-4}},
    [OPS_VALUE_BF16_HEAVY] = {{2.9e-8, 0.013}, {5e-6, 7.8e-3}},
    [OPS_VALUE_U8_HEAVY] = {{3.7e-7, 0.018}, {2e-4, 0.031}},
    [OPS_KEY_F32] = {{1.7e-14, 1.2e-6}, {1e-9, 1e-3}},
    [OPS_KEY_BF16] = {{7.7e-8, 0.0051}, {5e-5, 0.03}},
    [OPS_KEY_U8] = {{3e-9, 0.0054}, {2e-4, 0.08}},
    [OPS_KEY_F32_QUANTISED] = {{1e-15, 4.4e-7}, {1e-9, 1e-3}},
    [OPS_KEY_BF16_QUANTISED] = {{1.1e-8, 0.0019}, {5e-5, 0.03}},
    [OPS_KEY_U8_QUANTISED] = {{8.6e-8, 0.0079}, {2e-4, 0.08}},
    [OPS_ATTENTION_F32] = {{3.1e-15, 1.4e-6}, {1e-11, 1e-5}},
    [OPS_ATTENTION_BF16] = {{3.8e-15, 6.6e-7}, {1e-11, 1e-5}},
    [OPS_ATTENTION_U8] = {{2.9e-15, 8.3e-7}, {1e-11, 1e-5}},
    [OPS_ATTENTION_HEAVY] = {{4.2e-15, 2.7e-6}, {1e-11, 1e-5}},
    [OPS_ATTENTION_CODED] = {{9.7e-5, 0.061}, {2e-4, 0.08}},
};

const struct ops_limit ops_limits_cpu[OPS_N_PATHS] = {
    [OPS_EMBED] = {{0, 0}, {1e-14, 1e-6}},
    [OPS_NORM] = {{6.2e-14, 5.1e-6}, {1e-12, 1e-5}},
    [OPS_LINEAR] = {{6.4e-13, 8.1e-6}, {1e-11, 1e-4}},
    [OPS_LINEAR_QUANTISED] = {{8.1e-5, 0.054}, {1e-4, 0.06}},
    [OPS_LINEAR_HEAVY] = {{2e-4, 0.08}, {5e-4, 0.12}},
    [OPS_GATED] = {{2.4e-12, 1.3e-5}, {1e-11, 1e-4}},
    [OPS_GATED_QUANTISED] = {{4.9e-4, 0.31}, {1e-3, 0.25}},
    [OPS_GATED_HEAVY] = {{9.3e-4, 0.3}, {1e-3, 0.25}},
    [OPS_HEAD] = {{1.5e-12, 5.7e-6}, {1e-11, 1e-4}},
    [OPS_HEAD_QUANTISED] = {{5e-5, 0.049}, {1e-4, 0.06}},
    [OPS_HEAD_HEAVY] = {{2.4e-4, 0.095}, {5e-4, 0.12}},
    [OPS_QUERY] = {{4.3e-14, 2.2e-6}, {1e-11, 1e-4}},
    [OPS_QUERY_QUANTISED] = {{4.7e-5, 0.044}, {1e-4, 0.06}},
    [OPS_QUERY_HEAVY] = {{2.9e-4, 0.14}, {5e-4, 0.12}},
    [OPS_VALUE_F32] = {{3.1e-14, 2e-6}, {1e-11, 1e-4}},
    [OPS_VALUE_BF16] = {{3.2e-7, 0.017}, {5e-6, 7.8e-3}},
    [OPS_VALUE_U8] = {{1.6e-8, 0.021}, {2e-4, 0.031}},
    [OPS_VALUE_F32_QUANTISED] = {{1.3e-5, 0.031}, {1e-4, 0.06}},
    [OPS_VALUE_BF16_QUANTISED] = {{6.7e-5, 0.049}, {1e-4, 0.0678}},
    [OPS_VALUE_U8_QUANTISED] = {{1.3e-4, 0.057}, {3e-4, 0.0912}},
    [OPS_VALUE_F32_HEAVY] = {{3e-4, 0.062}, {5e-4, 0.12}},
    [OPS_VALUE_BF16_HEAVY] = {{1.2e-4, 0.084}, {5e-4, 0.127}},
    [OPS_VALUE_U8_HEAVY] = {{3.1e-4, 0.11}, {7e-4, 0.15}},
    [OPS_KEY_F32] = {{2.9e-13, 6.6e-6}, {1e-9, 1e-3}},
    [OPS_KEY_BF16] = {{1.8e-5, 0.02}, {1e-4, 0.06}},
    [OPS_KEY_U8] = {{3.2e-8, 0.003}, {2.5e-4, 0.11}},
    [OPS_KEY_F32_QUANTISED] = {{2.3e-6, 0.018}, {1e-2, 0.6}},
    [OPS_KEY_BF16_QUANTISED] = {{8.9e-5, 0.05}, {1e-2, 0.66}},
    [OPS_KEY_U8_QUANTISED] = {{1.7e-4, 0.052}, {1e-2, 0.71}},
    [OPS_ATTENTION_F32] = {{1.3e-12, 1.2e-5}, {1e-11, 1e-5}},
    [OPS_ATTENTION_BF16] = {{1.6e-5, 0.036}, {5e-5, 0.03}},
    [OPS_ATTENTION_U8] = {{1.6e-5, 0.035}, {5e-5, 0.03}},
    [OPS_ATTENTION_HEAVY] = {{8.2e-6, 0.074}, {5e-5, 0.3}},
    [OPS_ATTENTION_CODED] = {{1.1e-4, 0.07}, {2e-4, 0.08}},
};

#define OPS_NAME(name) #name,
static const char *const path_names[] = {OPS_PATHS(OPS_NAME)};

void ops_run(void (*check)(const struct ops_subject *s), const struct ops_subject *subject)
{
    const char *n_seeds = getenv("OPS_SEEDS");
    struct ops_error seen[OPS_N_PATHS] = {{0, 0}};
    struct ops_subject s = *subject;

    s.seen = n_seeds ? seen : NULL;
    for (uint32_t i = 0; i < (n_seeds ? strtoul(n_seeds, NULL, 10) : 1); i++) {
        s.seed = subject->seed + 1000 * i;
        check(&s);
    }
    for (int path = 0; n_seeds && path < OPS_N_PATHS; path++) {
        if (seen[path].max > 0)
            printf("%-9s %-12s %-20s NMSE %8.2g  largest %8.2g rms\n", s.ops->name,
                   s.config.isa ? s.config.isa : "", path_names[path], seen[path].nmse,
                   seen[path].max);
    }
}

enum ops_path path_of(enum ops_path plain, bool quantised, enum input kind)
{
    bool heavy = kind == INPUT_HEAVY || kind == INPUT_SPIKES || kind == INPUT_ROWS;

    return plain + (!quantised ? 0u : heavy ? 2u : 1u);
}

static const float *row_at(const struct tensor *t, uint32_t row)
{
    return (const float *)(const void *)((const char *)t->data + row * t->stride_bytes);
}

static void check_bits(const struct tensor *got, const struct tensor *want, const char *text)
{
    for (uint32_t r = 0; r < want->n_rows; r++) {
        const float *a = row_at(got, r), *b = row_at(want, r);

        for (uint32_t c = 0; c < want->n_cols; c++) {
            if (numeric_bits(a[c]) == numeric_bits(b[c]) || (a[c] != a[c] && b[c] != b[c]))
                continue;
            cr_expect_fail("%s: row %u of %u, column %u of %u: %a should be %a", text, r,
                           want->n_rows, c, want->n_cols, (double)a[c], (double)b[c]);
            return;
        }
    }
}

/* What passes for n values. Many are held to three times what was seen; the errors of fewer scatter
 * too much for that. */
static struct ops_error allowed_of(const struct ops_limit *limit, double n)
{
    if (n < MANY)
        return limit->most;
    return (struct ops_error){fmin(3 * limit->seen.nmse, limit->most.nmse),
                              fmin(3 * limit->seen.max, limit->most.max)};
}

void check_rows(const struct pair *p, const struct tensor *got, const struct tensor *want,
                enum ops_path path, const char *what, ...)
{
    double error = 0, power = 0, largest = 0, rms, n = (double)want->n_rows * want->n_cols;
    struct ops_error allowed;
    char text[160];
    bool is_finite = true;
    va_list ap;

    va_start(ap, what);
    vsnprintf(text, sizeof text, what, ap);
    va_end(ap);
    if (!p->subject->limits) {
        check_bits(got, want, text);
        return;
    }
    for (uint32_t r = 0; r < want->n_rows; r++) {
        const float *b = row_at(want, r);

        for (uint32_t c = 0; c < want->n_cols; c++)
            power += (double)b[c] * (double)b[c];
    }
    rms = sqrt(power / n);
    for (uint32_t r = 0; r < want->n_rows; r++) {
        const float *a = row_at(got, r), *b = row_at(want, r);
        double row_power = 0, row_largest = 0;

        for (uint32_t c = 0; c < want->n_cols; c++) {
            double d = (double)a[c] - (double)b[c];

            is_finite = is_finite && isfinite(a[c]) && isfinite(b[c]);
            error += d * d;
            row_power += (double)b[c] * (double)b[c];
            row_largest = fmax(row_largest, fabs(d));
        }
        /* Rows that average few keys are larger than the others, and so are their errors. */
        if (row_largest > 0)
            largest = fmax(largest, row_largest / fmax(rms, sqrt(row_power / want->n_cols)));
    }
    cr_expect(is_finite, "%s: not finite", text);
    if (power == 0) {
        cr_expect(error == 0, "%s: should be all zeros", text);
        return;
    }
    if (p->subject->seen && n >= MANY) {
        struct ops_error *seen = &p->subject->seen[path];

        seen->nmse = fmax(seen->nmse, error / power);
        seen->max = fmax(seen->max, largest);
        return;
    }
    allowed = allowed_of(&p->subject->limits[path], n);
    cr_expect(error <= allowed.nmse * power && largest <= allowed.max,
              "%s, %s: NMSE %.3g (limit %.3g), largest error %.3g rms (limit %.3g)", text,
              path_names[path], error / power, allowed.nmse, largest, allowed.max);
}

void check_each_row(const struct pair *p, const struct tensor *got, const struct tensor *want,
                    enum ops_path path, const char *what)
{
    for (uint32_t r = 0; r < want->n_rows && want->n_cols >= 16; r++) {
        const struct tensor a = {(char *)got->data + r * got->stride_bytes, DTYPE_F32, 1,
                                 got->n_cols, got->stride_bytes};
        const struct tensor b = {(char *)want->data + r * want->stride_bytes, DTYPE_F32, 1,
                                 want->n_cols, want->stride_bytes};

        check_rows(p, &a, &b, path, "%s, row %u", what, r);
    }
}
