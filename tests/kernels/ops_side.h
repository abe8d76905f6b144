/* tests/kernels/ops_side.h - what the operator checks are made of: a pair of backends given the
 * same inputs, and the comparison of what they made of them. */
#ifndef CB_TESTS_KERNELS_OPS_SIDE_H
#define CB_TESTS_KERNELS_OPS_SIDE_H

#include "tests/kernels/ops_common.h"

enum { PAIR_BUFFERS_MAX = 1024 };

struct side {
    const struct backend_ops *ops;
    struct backend *backend;
    struct stream *stream;
};

/* side[0] is under test, side[1] the oracle. Buffers live until the pair is closed. */
struct pair {
    const struct ops_subject *subject;
    struct side side[2];
    uint64_t random;
    bool uncoded; /* the oracle keeps keys and values as they were written, not as codes */
    bool extreme; /* a block of a weight has the least code, or the largest, all over */
    uint32_t n_buffers;
    void *buffers[2][PAIR_BUFFERS_MAX];
};

/* The same array in the memory of both backends. */
struct both {
    float *data[2];
};

enum input {
    INPUT_NORMAL,
    INPUT_HEAVY,    /* a few channels times 20             */
    INPUT_SPIKES,   /* a fiftieth of the values times 1000 */
    INPUT_DENORMAL, /* a third of the values are denormal  */
    INPUT_TINY,     /* all values about 1e-25              */
    INPUT_LARGE,    /* all values about 1e15               */
    INPUT_OFFSET,   /* all values about 3                  */
    INPUT_ZERO,     /* of both signs                       */
    INPUT_EXTREME,  /* each 32 of a row are 1, or -1: the largest sums of int8 */
    INPUT_ROWS,     /* each row of another kind than the one before */
    INPUT_BOTTOM,   /* groups of 32 about 2^-100, below which 8 bits keep nothing: for bits only */
    INPUT_COUNT
};

/* How many of them go into a check. */
static inline int inputs_of(const struct ops_subject *s)
{
    return s->limits ? INPUT_BOTTOM : INPUT_COUNT;
}

void pair_open(struct pair *p, const struct ops_subject *subject);
void pair_close(struct pair *p);

/* f32s for both sides; `values` NULL: zeroed. */
struct both pair_floats(struct pair *p, size_t n, const float *values);
/* n random normals, times scale, plus offset. */
struct both pair_random(struct pair *p, size_t n, double scale, double offset);
/* A view of rows; the stride is rounded up to 64 bytes, plus 64. Inputs by kind. */
struct both pair_rows(struct pair *p, uint32_t n_rows, uint32_t n_cols, enum input kind);
struct tensor pair_tensor(const struct both *b, int side, uint32_t n_rows, uint32_t n_cols);
size_t pair_stride(uint32_t n_cols); /* f32s */

/* A random weight of those shapes and formats on both sides; *weights [2]. */
void pair_weight(struct pair *p, struct weight *weights[2], enum weight_use use, uint32_t n_cols,
                 uint32_t n_parts, const uint32_t *n_rows, const enum dtype *dtypes);
/* The n x n unit matrix in F32, times scale. */
void pair_unit_weight(struct pair *p, struct weight *weights[2], uint32_t n, float scale);
void pair_weight_free(struct pair *p, struct weight *weights[2]);

bool dtype_is_quantised(enum dtype t);
uint32_t cols_fit(enum dtype t, uint32_t n_cols); /* rounded up to what the format admits */

/* The path of a weight and an input, where `plain` is that of F32, F16 and BF16 weights and those
 * of quantised ones, any input and heavy ones, follow. */
enum ops_path path_of(enum ops_path plain, bool quantised, enum input kind);

/* Reports `what` unless rows of `got` are within the path's limit of rows of `want`. */
void check_rows(const struct pair *p, const struct tensor *got, const struct tensor *want,
                enum ops_path path, const char *what, ...) __attribute__((format(printf, 5, 6)));
/* The same a row at a time, for rows that differ in size. */
void check_each_row(const struct pair *p, const struct tensor *got, const struct tensor *want,
                    enum ops_path path, const char *what);

#endif
