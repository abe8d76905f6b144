#include "tests/kernels/ops_common.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/ops_side.h"

/* stored_u8: a step of a head's codes is 1/255 of its range, which is 5 to 7 times its rms: up to
 * 1/36 of it. Two roundings to different codes are off by a step at most, and in the mean square by
 * 2/12 of its square. */
const struct ops_limits ops_limits_f32 = {
    .norm = {1e-12, 1e-5},
    .linear = {1e-11, 1e-4},
    .quantised = {1e-11, 1e-4},
    .quantised_heavy = {1e-11, 1e-4},
    .gated = {1e-11, 1e-4},
    .gated_quantised = {1e-11, 1e-4},
    .stored_bf16 = {5e-6, 1.0 / 128},
    .stored_u8 = {2e-4, 1.0 / 32},
    .attention_f32 = {1e-11, 1e-5},
    .attention_bf16 = {1e-11, 1e-5},
    .attention_u8 = {2e-4, 0.08},
};

const struct ops_limits ops_limits_cpu = {
    .norm = {1e-12, 1e-5},
    .linear = {1e-11, 1e-4},
    .quantised = {1e-4, 0.06},
    .quantised_heavy = {5e-4, 0.12},
    .gated = {1e-11, 1e-4},
    .gated_quantised = {1e-3, 0.25},
    .stored_bf16 = {5e-6, 1.0 / 128},
    .stored_u8 = {2e-4, 1.0 / 32},
    .attention_f32 = {1e-11, 1e-5},
    .attention_bf16 = {5e-5, 0.03},
    .attention_u8 = {2e-4, 0.08},
};

uint32_t ops_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (uint32_t)((x ^ x >> 31) >> 32);
}

double ops_random_normal(uint64_t *state)
{
    double u = (ops_random(state) + 1.0) * 0x1p-32, v = ops_random(state) * 0x1p-32;

    return sqrt(-2 * log(u)) * cos(2 * acos(-1) * v);
}

bool dtype_is_quantised(enum dtype t)
{
    return t == DTYPE_Q4_0 || t == DTYPE_Q4_1 || t == DTYPE_Q8_0;
}

void pair_open(struct pair *p, const struct ops_subject *subject)
{
    const struct stream_shape shape = {
        .max_tokens = 320,
        .max_seqs = 16,
        .max_outputs = 320,
        .max_cols = 1600,
        .n_vocab = 5120,
        .n_heads = 16,
        .head_dim = 256,
        .max_context = 2048,
    };
    const struct backend_config plain = {0};

    memset(p, 0, sizeof *p);
    p->subject = subject;
    p->random = subject->seed;
    for (int i = 0; i < 2; i++) {
        struct side *s = &p->side[i];
        const char *why = "?";
        int r;

        s->ops = i ? subject->oracle : subject->ops;
        r = s->ops->open(&s->backend, i ? &plain : &subject->config, &why);
        cr_assert_eq(r, 0, "%s does not open: %s", s->ops->name, why);
        cr_assert_eq(s->ops->stream_new(s->backend, &s->stream, &shape), 0);
    }
}

void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        struct side *s = &p->side[i];

        for (uint32_t j = 0; j < p->n_buffers; j++)
            s->ops->buffer_free(s->backend, p->buffers[i][j]);
        s->ops->stream_free(s->stream);
        s->ops->close(s->backend);
    }
}

struct both pair_floats(struct pair *p, size_t n, const float *values)
{
    struct both b;

    cr_assert_lt(p->n_buffers, PAIR_BUFFERS_MAX);
    for (int i = 0; i < 2; i++) {
        void *data = NULL;
        int r = p->side[i].ops->buffer_new(p->side[i].backend, &data, n * sizeof(float), values);

        cr_assert(!r && (uintptr_t)data % 64 == 0);
        p->buffers[i][p->n_buffers] = data;
        b.data[i] = data;
    }
    p->n_buffers++;
    return b;
}

struct both pair_random(struct pair *p, size_t n, double scale, double offset)
{
    float *values = malloc(n * sizeof *values);
    struct both b;

    for (size_t i = 0; i < n; i++)
        values[i] = (float)(ops_random_normal(&p->random) * scale + offset);
    b = pair_floats(p, n, values);
    free(values);
    return b;
}

size_t pair_stride(uint32_t n_cols)
{
    return (n_cols + 15) / 16 * 16 + 16;
}

static float random_input(struct pair *p, uint32_t col, enum input kind)
{
    double x = ops_random_normal(&p->random);

    switch (kind) {
    case INPUT_HEAVY:
        return (float)(col % 97 == 5 ? 20 * x : x);
    case INPUT_DENORMAL:
        return (float)(ops_random(&p->random) % 3 ? x : x * 1e-40);
    case INPUT_TINY:
        return (float)(x * 1e-25);
    case INPUT_OFFSET:
        return (float)(x / 10 + 3);
    case INPUT_ZERO:
        return 0;
    default:
        return (float)x;
    }
}

struct both pair_rows(struct pair *p, uint32_t n_rows, uint32_t n_cols, enum input kind)
{
    size_t stride = pair_stride(n_cols);
    float *values = calloc(n_rows * stride, sizeof *values);
    struct both b;

    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t c = 0; c < n_cols; c++)
            values[r * stride + c] = random_input(p, c, kind);
    }
    b = pair_floats(p, n_rows * stride, values);
    free(values);
    return b;
}

struct tensor pair_tensor(const struct both *b, int side, uint32_t n_rows, uint32_t n_cols)
{
    return (struct tensor){b->data[side], DTYPE_F32, n_rows, n_cols,
                           pair_stride(n_cols) * sizeof(float)};
}

static uint16_t random_half(struct pair *p, uint32_t exponent_min, uint32_t exponent_max)
{
    uint32_t exponent = exponent_min + ops_random(&p->random) % (exponent_max - exponent_min + 1);

    return (uint16_t)(exponent << 10 | ops_random(&p->random) >> 22);
}

/* Values about 0.05; every fiftieth block has a denormal scale. */
static void random_block(struct pair *p, uint8_t *out, enum dtype t)
{
    float x = (float)(ops_random_normal(&p->random) * 0.05);
    uint32_t bits, n = (uint32_t)dtype_row_bytes(t, dtype_is_quantised(t) ? 32 : 1);
    uint16_t d, m;
    bool denormal = ops_random(&p->random) % 50 == 0;

    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)(ops_random(&p->random) >> 8);
    memcpy(&bits, &x, sizeof bits);
    switch (t) {
    case DTYPE_F32:
        memcpy(out, &x, sizeof x);
        break;
    case DTYPE_BF16:
        d = (uint16_t)(bits >> 16);
        memcpy(out, &d, sizeof d);
        break;
    case DTYPE_F16:
        d = (uint16_t)(random_half(p, denormal ? 0 : 6, denormal ? 0 : 10) |
                       (ops_random(&p->random) & 0x8000));
        memcpy(out, &d, sizeof d);
        break;
    case DTYPE_Q8_0: /* 127 * 2^-11 */
        d = denormal ? random_half(p, 0, 0) : random_half(p, 2, 4);
        memcpy(out, &d, sizeof d);
        break;
    default: /* 15 * 2^-8 */
        d = denormal ? random_half(p, 0, 0) : random_half(p, 5, 7);
        memcpy(out, &d, sizeof d);
        if (t == DTYPE_Q4_1) {
            /* About -7.5 d: one exponent step is a factor of 2, so 3 steps up. */
            m = (uint16_t)(denormal ? d : (d + (3u << 10)) | 0x8000);
            memcpy(out + 2, &m, sizeof m);
        }
        break;
    }
}

/* The same weight brought by weight_fill, `step` rows at a time, the last first: so that pieces
 * begin and end inside the backend's own units. */
static int fill_weight(struct side *side, struct weight **weightp, const struct weight_spec *whole,
                       uint32_t step, const char **why)
{
    struct weight_spec empty = *whole;
    int r;

    for (uint32_t i = 0; i < whole->n_parts; i++)
        empty.parts[i].data = NULL;
    r = side->ops->weight_new(side->backend, weightp, &empty, why);
    for (uint32_t i = 0; i < whole->n_parts && !r; i++) {
        const struct weight_part *part = &whole->parts[i];
        uint32_t end = part->n_rows;

        while (end) {
            uint32_t begin = (end - 1) / step * step;

            side->ops->weight_fill(*weightp, i, begin, end - begin,
                                   (const char *)part->data +
                                       begin * dtype_row_bytes(part->dtype, whole->n_cols));
            end = begin;
        }
    }
    return r;
}

void pair_weight(struct pair *p, struct weight *weights[2], enum weight_use use, uint32_t n_cols,
                 uint32_t n_parts, const uint32_t *n_rows, const enum dtype *dtypes)
{
    struct weight_spec spec = {"random", use, n_cols, n_parts, {{0}}};

    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t block_cols = dtype_is_quantised(dtypes[i]) ? 32 : 1;
        size_t n_blocks = (size_t)n_rows[i] * (n_cols / block_cols);
        size_t block_bytes = dtype_row_bytes(dtypes[i], block_cols);
        uint8_t *data = malloc(n_blocks * block_bytes);

        for (size_t b = 0; b < n_blocks; b++)
            random_block(p, data + b * block_bytes, dtypes[i]);
        spec.parts[i] = (struct weight_part){data, dtypes[i], n_rows[i]};
    }
    for (int i = 0; i < 2; i++) {
        const char *why = "?";
        struct side *side = &p->side[i];
        int r = side->ops->weight_fill
                    ? fill_weight(side, &weights[i], &spec, 37, &why)
                    : side->ops->weight_new(side->backend, &weights[i], &spec, &why);

        cr_assert_eq(r, 0, "%s refuses a weight: %s", side->ops->name, why);
    }
    for (uint32_t i = 0; i < n_parts; i++)
        free((void *)spec.parts[i].data);
}

void pair_unit_weight(struct pair *p, struct weight *weights[2], uint32_t n, float scale)
{
    float *data = calloc((size_t)n * n, sizeof *data);
    struct weight_spec spec = {"unit", WEIGHT_LINEAR, n, 1, {{data, DTYPE_F32, n}}};

    for (size_t i = 0; i < n; i++)
        data[i * n + i] = scale;
    for (int i = 0; i < 2; i++) {
        const char *why = "?";
        int r = p->side[i].ops->weight_new(p->side[i].backend, &weights[i], &spec, &why);

        cr_assert_eq(r, 0, "%s refuses a weight: %s", p->side[i].ops->name, why);
    }
    free(data);
}

void pair_weight_free(struct pair *p, struct weight *weights[2])
{
    for (int i = 0; i < 2; i++)
        p->side[i].ops->weight_free(weights[i]);
}

void check_rows(const struct tensor *got, const struct tensor *want, const struct ops_limit *limit,
                const char *what, ...)
{
    double error = 0, power = 0, largest = 0, rms, n = (double)want->n_rows * want->n_cols;
    /* A few values may all be small by cancellation, which no error of their terms follows. */
    double ease = n < 16 ? 10 : 1;
    char text[160];
    bool same_kind = true;
    va_list ap;

    va_start(ap, what);
    vsnprintf(text, sizeof text, what, ap);
    va_end(ap);
    for (uint32_t r = 0; r < want->n_rows; r++) {
        const float *b = (const float *)((const char *)want->data + r * want->stride_bytes);

        for (uint32_t c = 0; c < want->n_cols; c++)
            power += (double)b[c] * (double)b[c];
    }
    rms = sqrt(power / n);
    for (uint32_t r = 0; r < want->n_rows; r++) {
        const float *a = (const float *)((const char *)got->data + r * got->stride_bytes);
        const float *b = (const float *)((const char *)want->data + r * want->stride_bytes);
        double row_power = 0, row_largest = 0;

        for (uint32_t c = 0; c < want->n_cols; c++) {
            double d = (double)a[c] - (double)b[c];

            same_kind = same_kind && isfinite(a[c]) && isfinite(b[c]);
            error += d * d;
            row_power += (double)b[c] * (double)b[c];
            row_largest = fmax(row_largest, fabs(d));
        }
        /* Rows that average few keys are larger than the others, and so are their errors. */
        largest = fmax(largest, row_largest / fmax(rms, sqrt(row_power / want->n_cols)));
    }
    cr_expect(same_kind, "%s: not finite", text);
    if (power == 0)
        cr_expect(error == 0, "%s: should be all zeros, largest %g", text, largest);
    else
        cr_expect(error <= limit->nmse * ease * ease * power && largest <= limit->max * ease,
                  "%s: NMSE %.3g (limit %.3g), largest error %.3g rms (limit %.3g)", text,
                  error / power, limit->nmse * ease * ease, largest, limit->max * ease);
}
