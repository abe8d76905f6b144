/* daemon/model/gguf_tensors.c - descriptions of tensors: types, sizes, places. */
#include "daemon/model/gguf_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/model/message.h"

/* Tensor types by their number in the file. block_bytes 0: known by name only, so that the message
 * can say which type a file needs. */
static const struct {
    const char *name;
    enum dtype dtype;
    uint8_t block_cols, block_bytes;
} tensor_types[] = {
    [0] = {"F32", DTYPE_F32, 1, 4},        [1] = {"F16", DTYPE_F16, 1, 2},
    [2] = {"Q4_0", DTYPE_Q4_0, 32, 18},    [3] = {"Q4_1", DTYPE_Q4_1, 32, 20},
    [6] = {"Q5_0", DTYPE_COUNT, 0, 0},     [7] = {"Q5_1", DTYPE_COUNT, 0, 0},
    [8] = {"Q8_0", DTYPE_Q8_0, 32, 34},    [9] = {"Q8_1", DTYPE_COUNT, 0, 0},
    [10] = {"Q2_K", DTYPE_COUNT, 0, 0},    [11] = {"Q3_K", DTYPE_COUNT, 0, 0},
    [12] = {"Q4_K", DTYPE_COUNT, 0, 0},    [13] = {"Q5_K", DTYPE_COUNT, 0, 0},
    [14] = {"Q6_K", DTYPE_COUNT, 0, 0},    [15] = {"Q8_K", DTYPE_COUNT, 0, 0},
    [16] = {"IQ2_XXS", DTYPE_COUNT, 0, 0}, [17] = {"IQ2_XS", DTYPE_COUNT, 0, 0},
    [18] = {"IQ3_XXS", DTYPE_COUNT, 0, 0}, [19] = {"IQ1_S", DTYPE_COUNT, 0, 0},
    [20] = {"IQ4_NL", DTYPE_COUNT, 0, 0},  [21] = {"IQ3_S", DTYPE_COUNT, 0, 0},
    [22] = {"IQ2_S", DTYPE_COUNT, 0, 0},   [23] = {"IQ4_XS", DTYPE_COUNT, 0, 0},
    [24] = {"I8", DTYPE_COUNT, 0, 0},      [25] = {"I16", DTYPE_COUNT, 0, 0},
    [26] = {"I32", DTYPE_COUNT, 0, 0},     [27] = {"I64", DTYPE_COUNT, 0, 0},
    [28] = {"F64", DTYPE_COUNT, 0, 0},     [29] = {"IQ1_M", DTYPE_COUNT, 0, 0},
    [30] = {"BF16", DTYPE_BF16, 1, 2},     [34] = {"TQ1_0", DTYPE_COUNT, 0, 0},
    [35] = {"TQ2_0", DTYPE_COUNT, 0, 0},   [39] = {"MXFP4", DTYPE_COUNT, 0, 0},
};
#define N_TENSOR_TYPES     (sizeof tensor_types / sizeof tensor_types[0])
#define TENSOR_TYPES_WORDS "F32, F16, BF16, Q4_0, Q4_1 and Q8_0"

static int check_type(struct cursor *c, struct gguf_tensor *t, uint32_t number, uint64_t *bytes)
{
    uint64_t n_blocks;

    if (number >= N_TENSOR_TYPES || tensor_types[number].block_bytes == 0) {
        const char *name = number < N_TENSOR_TYPES ? tensor_types[number].name : NULL;

        return model_refuse(c->message, -ENOTSUP,
                            "%s: tensor '%s' at byte %" PRIu64 " has type %s (number %" PRIu32
                            "), which is not supported; use a file with " TENSOR_TYPES_WORDS
                            " tensors only",
                            c->g->path, t->name, c->at, name ? name : "unknown", number);
    }
    t->dtype = tensor_types[number].dtype;
    if (t->dims[0] % tensor_types[number].block_cols != 0)
        return model_refuse(c->message, -EINVAL,
                            "%s: tensor '%s' at byte %" PRIu64 ": rows of %" PRIu64
                            " values cannot be cut into %s blocks of %u: " GGUF_DAMAGED,
                            c->g->path, t->name, c->at, t->dims[0], tensor_types[number].name,
                            tensor_types[number].block_cols);
    n_blocks = t->dims[0] / tensor_types[number].block_cols;
    for (uint32_t d = 1; d < 4; d++)
        if (__builtin_mul_overflow(n_blocks, t->dims[d], &n_blocks))
            n_blocks = UINT64_MAX; /* stays too large, or overflows again */
    if (__builtin_mul_overflow(n_blocks, tensor_types[number].block_bytes, bytes))
        *bytes = UINT64_MAX;
    return 0;
}

/* Reads one tensor's description; its place is checked once the data's start is known. */
static int take_tensor(struct cursor *c, uint64_t idx, struct gguf_tensor *t)
{
    uint64_t bytes = 0;
    uint32_t number = 0;
    int r = cursor_take_name(c, "tensor", idx, t->name);

    if (!r)
        r = cursor_take_u32(c, &t->n_dims, "number of dimensions");
    if (r)
        return r;
    if (t->n_dims < 1 || t->n_dims > 4)
        return model_refuse(c->message, -EINVAL,
                            "%s: tensor '%s' at byte %" PRIu64 " has %" PRIu32
                            " dimensions; 1 to 4 are possible: " GGUF_DAMAGED,
                            c->g->path, t->name, c->at - 4, t->n_dims);
    for (uint32_t d = 0; d < 4; d++) {
        t->dims[d] = 1;
        if (d < t->n_dims)
            r = cursor_take_u64(c, &t->dims[d], "dimension");
        if (r)
            return r;
        if (t->dims[d] == 0)
            return model_refuse(c->message, -EINVAL,
                                "%s: tensor '%s' at byte %" PRIu64 ": dimension %" PRIu32
                                " is 0: " GGUF_DAMAGED,
                                c->g->path, t->name, c->at - 8, d);
    }
    r = cursor_take_u32(c, &number, "type");
    if (!r)
        r = check_type(c, t, number, &bytes);
    if (!r)
        r = cursor_take_u64(c, &t->file_off, "offset");
    if (!r && bytes > c->g->bytes)
        r = model_refuse(c->message, -EINVAL,
                         "%s: tensor '%s' described before byte %" PRIu64 " takes %s%" PRIu64
                         " bytes, more than the whole file of %zu: " GGUF_DAMAGED,
                         c->g->path, t->name, c->at, bytes == UINT64_MAX ? "at least " : "", bytes,
                         c->g->bytes);
    t->bytes = (size_t)bytes;
    return r;
}

int gguf_take_tensors(struct gguf *g, struct cursor *c, uint64_t n_tensors)
{
    int r = 0;

    for (; g->n_tensors < n_tensors && !r; g->n_tensors++)
        r = take_tensor(c, g->n_tensors, &g->tensors[g->n_tensors]);
    return r;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;

    return ((*x)->file_off > (*y)->file_off) - ((*x)->file_off < (*y)->file_off);
}

int gguf_place_tensors(struct gguf *g, uint64_t data_off, uint32_t alignment, char *message)
{
    const struct gguf_tensor **sorted = g->tensors_by_name; /* by name only in the end */

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        uint64_t offset = t->file_off;

        if (offset % alignment != 0)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s': offset %" PRIu64
                                " is no multiple of the file's alignment %" PRIu32
                                ": " GGUF_DAMAGED,
                                g->path, t->name, offset, alignment);
        if (data_off > g->bytes || offset > g->bytes - data_off ||
            t->bytes > g->bytes - data_off - offset)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s': its %zu bytes at offset %" PRIu64
                                " of the data, which begin at byte %" PRIu64
                                ", go past the end of the file at byte %zu: " GGUF_DAMAGED,
                                g->path, t->name, t->bytes, offset, data_off, g->bytes);
        t->file_off = data_off + offset;
        sorted[i] = t;
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], compare_offsets);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = sorted[i - 1], *b = sorted[i];

        if (b->file_off - a->file_off < a->bytes)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s' at byte %" PRIu64
                                " overlaps tensor '%s' at byte %" PRIu64
                                " (%zu bytes): " GGUF_DAMAGED,
                                g->path, b->name, b->file_off, a->name, a->file_off, a->bytes);
    }
    qsort(sorted, g->n_tensors, sizeof sorted[0], compare_tensors);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            return model_refuse(message, -EINVAL,
                                "%s: tensor '%s' occurs twice, with data at bytes %" PRIu64
                                " and %" PRIu64 ": convert the model again",
                                g->path, sorted[i]->name, sorted[i - 1]->file_off,
                                sorted[i]->file_off);
    return 0;
}

uint32_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint32_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    uint32_t low = 0, high = g->n_tensors;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = strcmp(name, g->tensors_by_name[mid]->name);

        if (order == 0)
            return g->tensors_by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}
