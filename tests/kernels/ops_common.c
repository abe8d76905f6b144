#include "tests/kernels/ops_common.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"
#include "tests/kernels/ops_side.h"

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

uint32_t cols_fit(enum dtype t, uint32_t n_cols)
{
    return dtype_is_quantised(t) ? (n_cols + 31) / 32 * 32 : n_cols;
}

void pair_open(struct pair *p, const struct ops_subject *subject)
{
    const struct stream_shape shape = {
        .max_tokens = 1000,
        .max_seqs = 16,
        .max_outputs = 1000,
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

/* By its bits: arithmetic would flush it. */
static float random_denormal(struct pair *p)
{
    return numeric_from_bits(ops_random(&p->random) & 0x807fffff);
}

static float random_input(struct pair *p, uint32_t row, uint32_t col, enum input kind)
{
    static const enum input kinds[] = {INPUT_NORMAL, INPUT_ZERO,  INPUT_SPIKES, INPUT_DENORMAL,
                                       INPUT_TINY,   INPUT_LARGE, INPUT_HEAVY};
    double x = ops_random_normal(&p->random);
    uint32_t chance = ops_random(&p->random);

    switch (kind) {
    case INPUT_HEAVY:
        return (float)(col % 97 == 5 ? 20 * x : x);
    case INPUT_SPIKES:
        return (float)(chance % 50 ? x : 1000 * x);
    case INPUT_DENORMAL:
        return chance % 3 ? (float)x : random_denormal(p);
    case INPUT_TINY:
        return (float)(x * 1e-25);
    case INPUT_LARGE:
        return (float)(x * 1e15);
    case INPUT_OFFSET:
        return (float)(x / 10 + 3);
    case INPUT_ZERO:
        return chance % 2 ? 0.0f : -0.0f;
    case INPUT_EXTREME:
        return (row * 31 + col / 32) * 2654435761u >> 31 ? 1.0f : -1.0f;
    case INPUT_BOTTOM:
        x = fmax(-1, fmin(x, 1)); /* so that the largest of a group is a power of 2 */
        return (float)ldexp(x, -95 - (int)((row * 31 + col / 32) * 2654435761u >> 28));
    case INPUT_ROWS:
        return random_input(p, row, col, kinds[row % (sizeof kinds / sizeof kinds[0])]);
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
            values[r * stride + c] = random_input(p, r, c, kind);
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

/* A half of either sign with an exponent in that range; now and then it is denormal, or 0. */
static uint16_t random_half(struct pair *p, uint32_t exponent_min, uint32_t exponent_max)
{
    uint32_t exponent = exponent_min + ops_random(&p->random) % (exponent_max - exponent_min + 1);
    uint32_t chance = ops_random(&p->random) % 50, fraction = ops_random(&p->random) >> 22;
    uint32_t sign = ops_random(&p->random) & 0x8000;

    if (chance < 2)
        return (uint16_t)(chance ? sign : sign | fraction);
    return (uint16_t)(sign | exponent << 10 | fraction);
}

/* A value about 0.05, likewise. */
static float random_weight(struct pair *p)
{
    float x = (float)(ops_random_normal(&p->random) * 0.05);
    uint32_t chance = ops_random(&p->random) % 50, sign = numeric_bits(x) & 0x80000000;

    if (chance < 2)
        return chance ? numeric_from_bits(sign) : random_denormal(p);
    return x;
}

/* Values about 0.05. */
static void random_block(struct pair *p, uint8_t *out, enum dtype t)
{
    uint32_t n = (uint32_t)dtype_row_bytes(t, dtype_is_quantised(t) ? 32 : 1);
    float x = random_weight(p);
    uint16_t half[2] = {(uint16_t)(numeric_bits(x) >> 16), 0};

    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint8_t)(ops_random(&p->random) >> 8);
    if (p->extreme && ops_random(&p->random) % 2)
        memset(out, t == DTYPE_Q8_0 ? 0x7f : 0xff, n);
    else if (p->extreme)
        memset(out, t == DTYPE_Q8_0 ? 0x80 : 0x00, n);
    switch (t) {
    case DTYPE_F32:
        memcpy(out, &x, sizeof x);
        return;
    case DTYPE_BF16:
        break;
    case DTYPE_F16:
        half[0] = random_half(p, 6, 10);
        break;
    case DTYPE_Q8_0: /* 127 * 2^-11 */
        half[0] = random_half(p, 2, 4);
        break;
    default: /* 15 * 2^-8 */
        half[0] = random_half(p, 5, 7);
        /* Of Q4_1, about -7.5 d: one exponent step is a factor of 2, so 3 steps up. */
        half[1] = (half[0] & 0x7c00 ? half[0] + (3u << 10) : half[0]) ^ 0x8000;
        break;
    }
    memcpy(out, half, t == DTYPE_Q4_1 ? 4 : 2);
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

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(const struct side *s, int expected, int r, const char *why, const char *what)
{
    cr_expect_eq(r, expected, "%s with %s: %d", s->ops->name, what, r);
    cr_expect(why && strlen(why) > 5, "%s with %s gives no reason", s->ops->name, what);
}

void ops_check_refusals(const struct ops_subject *subject)
{
    static const float data[64 * 64];
    struct weight_part f32 = {data, DTYPE_F32, 2}, q4 = {data, DTYPE_Q4_0, 2};
    struct weight_part longer = {data, DTYPE_F32, 3};
    struct kv_shape shape = {1, 1, 16, 16, 4, DTYPE_F16};
    struct backend_config config = {.isa = "no such set"};
    struct backend *b = NULL;
    struct weight *w;
    struct kv *kv;
    struct pair p;
    const char *why = NULL;
    struct side *s = &p.side[0];
    int r;

    pair_open(&p, subject);
    r = s->ops->open(&b, &config, &why);
    refused(s, -ENOTSUP, r, why, "an unknown instruction set");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w, &(struct weight_spec){"a", WEIGHT_LINEAR, 48, 1, {q4}},
                           &why);
    refused(s, -EINVAL, r, why, "48 columns of Q4_0");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w,
                           &(struct weight_spec){"a", WEIGHT_GATE_UP, 32, 2, {f32, longer}}, &why);
    refused(s, -EINVAL, r, why, "gate and up of different shape");
    why = NULL;
    r = s->ops->weight_new(s->backend, &w,
                           &(struct weight_spec){"a", WEIGHT_EMBED, 32, 2, {f32, f32}}, &why);
    refused(s, -EINVAL, r, why, "an embedding in two parts");
    why = NULL;
    r = s->ops->kv_new(s->backend, &kv, &shape, &why);
    refused(s, -EINVAL, r, why, "keys in F16");
    shape.dtype = DTYPE_BF16;
    shape.page_size = subject->page_multiple > 1 ? subject->page_multiple + 1 : 3;
    why = NULL;
    r = s->ops->kv_new(s->backend, &kv, &shape, &why);
    refused(s, -EINVAL, r, why, "an odd page size");
    pair_close(&p);
}
