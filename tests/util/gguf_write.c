/* tests/util/gguf_write.c - three growing buffers: keys, tensor descriptions, tensor data. */
#include "tests/util/gguf_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/gguf.h"

#define ALIGNMENT 32u

struct bytes {
    uint8_t *data;
    size_t n, room;
};

struct gguf_out {
    uint32_t version;
    uint64_t n_keys, n_tensors;
    struct bytes keys, tensors, data;
};

static void *checked(void *p)
{
    if (!p)
        abort();
    return p;
}

/* Room for n more bytes at the end. */
static uint8_t *grow(struct bytes *b, size_t n)
{
    if (b->n + n > b->room) {
        b->room = 2 * (b->n + n);
        b->data = checked(realloc(b->data, b->room));
    }
    b->n += n;
    return b->data + b->n - n;
}

static void put(struct bytes *b, const void *data, size_t n)
{
    if (n)
        memcpy(grow(b, n), data, n);
}

static void put_u32(struct bytes *b, uint32_t v)
{
    put(b, &v, sizeof v);
}

static void put_u64(struct bytes *b, uint64_t v)
{
    put(b, &v, sizeof v);
}

static void put_string(struct bytes *b, const char *s)
{
    put_u64(b, strlen(s));
    put(b, s, strlen(s));
}

static void put_key(struct gguf_out *o, const char *key, enum gguf_type type)
{
    put_string(&o->keys, key);
    put_u32(&o->keys, type);
    o->n_keys++;
}

static void put_array(struct gguf_out *o, const char *key, enum gguf_type type, size_t n)
{
    put_key(o, key, GGUF_ARRAY);
    put_u32(&o->keys, type);
    put_u64(&o->keys, n);
}

/* ---- rounding -------------------------------------------------------------------------------- */

/* To the nearest, ties to even; too large becomes infinite. */
static uint16_t f16_of(float f)
{
    uint32_t bits, sign, exponent, mantissa, rest, half;
    int shift;

    memcpy(&bits, &f, sizeof bits);
    sign = bits >> 16 & 0x8000;
    exponent = bits >> 23 & 0xff;
    mantissa = bits & 0x7fffff;
    if (exponent == 0xff)
        return (uint16_t)(sign | 0x7c00 | (mantissa ? 0x200 : 0));
    if (exponent < 102) /* below half of the least denormal */
        return (uint16_t)sign;
    mantissa |= 0x800000;
    if (exponent < 113) { /* a denormal of f16 */
        shift = 126 - (int)exponent;
        exponent = 0;
    } else {
        shift = 13;
        exponent -= 113; /* the mantissa's leading bit adds one */
    }
    half = mantissa >> shift;
    rest = mantissa & ((1u << shift) - 1);
    if (rest > 1u << (shift - 1) || (rest == 1u << (shift - 1) && (half & 1)))
        half++;
    half += exponent << 10;
    return (uint16_t)(sign | (half > 0x7c00 ? 0x7c00 : half));
}

static float f32_of(uint16_t h)
{
    int exponent = h >> 10 & 31;
    float f = exponent ? ldexpf((float)((h & 0x3ff) | 0x400), exponent - 25)
                       : ldexpf((float)(h & 0x3ff), -24);

    return h & 0x8000 ? -f : f;
}

static uint16_t bf16_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint8_t code_of(float v, int most)
{
    int c = (int)lrintf(v);

    return (uint8_t)(c < 0 ? 0 : c > most ? most : c);
}

/* Codes 0-15 of 32 values, value = d * code + m, as 16 bytes: i in the low, 16 + i in the high
 * half. */
static void put_nibbles(struct bytes *b, const float *x, float d, float m)
{
    uint8_t *q = grow(b, 16);
    float inverse = d != 0 ? 1 / d : 0;

    for (int i = 0; i < 16; i++)
        q[i] = (uint8_t)(code_of((x[i] - m) * inverse, 15) | code_of((x[i + 16] - m) * inverse, 15)
                                                                 << 4);
}

static void put_q4_0(struct bytes *b, const float *x)
{
    float largest = 0, d;
    uint16_t h;

    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > fabsf(largest))
            largest = x[i];
    h = f16_of(largest / -8);
    d = f32_of(h);
    put(b, &h, 2);
    put_nibbles(b, x, d, -8 * d);
}

static void put_q4_1(struct bytes *b, const float *x)
{
    float low = x[0], high = x[0];
    uint16_t hd, hm;

    for (int i = 1; i < 32; i++) {
        low = fminf(low, x[i]);
        high = fmaxf(high, x[i]);
    }
    hd = f16_of((high - low) / 15);
    hm = f16_of(low);
    put(b, &hd, 2);
    put(b, &hm, 2);
    put_nibbles(b, x, f32_of(hd), f32_of(hm));
}

static void put_q8_0(struct bytes *b, const float *x)
{
    float largest = 0, d;
    uint16_t h;
    int8_t *q;

    for (int i = 0; i < 32; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    h = f16_of(largest / 127);
    d = f32_of(h);
    put(b, &h, 2);
    q = (int8_t *)grow(b, 32);
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(d != 0 ? fminf(127, fmaxf(-127, rintf(x[i] / d))) : 0);
}

static void put_values(struct bytes *b, enum dtype dtype, const float *x, size_t n)
{
    uint16_t h;

    switch (dtype) {
    case DTYPE_F32:
        put(b, x, n * sizeof *x);
        return;
    case DTYPE_F16:
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            h = dtype == DTYPE_F16 ? f16_of(x[i]) : bf16_of(x[i]);
            put(b, &h, 2);
        }
        return;
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q8_0:
        if (n % 32 != 0)
            abort();
        for (size_t i = 0; i < n; i += 32) {
            if (dtype == DTYPE_Q4_0)
                put_q4_0(b, x + i);
            else if (dtype == DTYPE_Q4_1)
                put_q4_1(b, x + i);
            else
                put_q8_0(b, x + i);
        }
        return;
    case DTYPE_COUNT:
    case DTYPE_U8:
        break;
    }
    abort();
}

size_t gguf_round(enum dtype dtype, const float *values, size_t n, void *out)
{
    struct bytes b = {0};
    size_t bytes;

    put_values(&b, dtype, values, n);
    bytes = b.n;
    if (bytes)
        memcpy(out, b.data, bytes);
    free(b.data);
    return bytes;
}

/* ---- public ---------------------------------------------------------------------------------- */

struct gguf_out *gguf_out_new(uint32_t version)
{
    struct gguf_out *o = checked(calloc(1, sizeof *o));

    o->version = version;
    return o;
}

struct gguf_out *gguf_out_free(struct gguf_out *o)
{
    if (!o)
        return NULL;
    free(o->keys.data);
    free(o->tensors.data);
    free(o->data.data);
    free(o);
    return NULL;
}

void gguf_out_u32(struct gguf_out *o, const char *key, uint32_t value)
{
    put_key(o, key, GGUF_U32);
    put_u32(&o->keys, value);
}

void gguf_out_u64(struct gguf_out *o, const char *key, uint64_t value)
{
    put_key(o, key, GGUF_U64);
    put_u64(&o->keys, value);
}

void gguf_out_f32(struct gguf_out *o, const char *key, float value)
{
    put_key(o, key, GGUF_F32);
    put(&o->keys, &value, sizeof value);
}

void gguf_out_bool(struct gguf_out *o, const char *key, bool value)
{
    put_key(o, key, GGUF_BOOL);
    put(&o->keys, &(uint8_t){value}, 1);
}

void gguf_out_string(struct gguf_out *o, const char *key, const char *value)
{
    put_key(o, key, GGUF_STRING);
    put_string(&o->keys, value);
}

void gguf_out_strings(struct gguf_out *o, const char *key, const char *const *values, size_t n)
{
    put_array(o, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_string(&o->keys, values[i]);
}

void gguf_out_i32s(struct gguf_out *o, const char *key, const int32_t *values, size_t n)
{
    put_array(o, key, GGUF_I32, n);
    put(&o->keys, values, n * sizeof *values);
}

void gguf_out_f32s(struct gguf_out *o, const char *key, const float *values, size_t n)
{
    put_array(o, key, GGUF_F32, n);
    put(&o->keys, values, n * sizeof *values);
}

void gguf_out_tensor(struct gguf_out *o, const char *name, enum dtype dtype, uint32_t n_rows,
                     uint32_t n_cols, const float *values)
{
    static const uint32_t numbers[DTYPE_COUNT] = {
        [DTYPE_F32] = 0,  [DTYPE_F16] = 1,  [DTYPE_BF16] = 30,
        [DTYPE_Q4_0] = 2, [DTYPE_Q4_1] = 3, [DTYPE_Q8_0] = 8,
    };
    size_t gap = (size_t)-o->data.n % ALIGNMENT;

    if (gap)
        memset(grow(&o->data, gap), 0, gap);
    put_string(&o->tensors, name);
    put_u32(&o->tensors, n_rows ? 2 : 1);
    put_u64(&o->tensors, n_cols);
    if (n_rows)
        put_u64(&o->tensors, n_rows);
    put_u32(&o->tensors, numbers[dtype]);
    put_u64(&o->tensors, o->data.n);
    put_values(&o->data, dtype, values, (size_t)(n_rows ? n_rows : 1) * n_cols);
    o->n_tensors++;
}

void *gguf_out_finish(struct gguf_out *o, size_t *bytesp)
{
    struct bytes b = {0};
    void *file;

    put(&b, "GGUF", 4);
    put_u32(&b, o->version);
    put_u64(&b, o->n_tensors);
    put_u64(&b, o->n_keys);
    put(&b, o->keys.data, o->keys.n);
    put(&b, o->tensors.data, o->tensors.n);
    if (b.n % ALIGNMENT)
        memset(grow(&b, ALIGNMENT - b.n % ALIGNMENT), 0, ALIGNMENT - b.n % ALIGNMENT);
    put(&b, o->data.data, o->data.n);
    file = checked(aligned_alloc(64, (b.n + 63) / 64 * 64));
    memcpy(file, b.data, b.n);
    *bytesp = b.n;
    free(b.data);
    return file;
}

void gguf_out_save(struct gguf_out *o, const char *path)
{
    size_t bytes;
    void *file = gguf_out_finish(o, &bytes);
    FILE *f = checked(fopen(path, "wb"));

    if (fwrite(file, 1, bytes, f) != bytes || fclose(f) != 0)
        abort();
    free(file);
}
