/* What all backends share: names and sizes of the number formats, the table of backends, and the
 * floating-point environment. A backend is added by one row of `backends`. */
#include "kernels/kernels.h"

#include <string.h>
#include <xmmintrin.h>

/* Values a block and bytes a block of each format in the file's layout. */
static const struct {
    const char *name;
    uint32_t block_cols, block_bytes;
} formats[DTYPE_COUNT] = {
    [DTYPE_F32] = {"F32", 1, 4},     [DTYPE_F16] = {"F16", 1, 2},
    [DTYPE_BF16] = {"BF16", 1, 2},   [DTYPE_Q4_0] = {"Q4_0", 32, 18},
    [DTYPE_Q4_1] = {"Q4_1", 32, 20}, [DTYPE_Q8_0] = {"Q8_0", 32, 34},
};

static const struct backend_ops *const backends[] = {
    &backend_reference,
    &backend_cpu,
};

int kernels_gather(struct stream *s, struct tensor *y, const struct tensor *x, const uint32_t *rows)
{
    (void)s;
    for (uint32_t i = 0; i < y->n_rows; i++) {
        /* The host checks rows; an unchecked one would read anywhere. */
        uint32_t row = rows[i] < x->n_rows ? rows[i] : 0;

        memcpy((char *)y->data + i * y->stride_bytes, (const char *)x->data + row * x->stride_bytes,
               y->n_cols * sizeof(float));
    }
    return 0;
}

const struct backend_ops *backend_find(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (!strcmp(backends[i]->name, name))
            return backends[i];
    }
    return NULL;
}

const char *dtype_name(enum dtype t)
{
    if (t == DTYPE_U8)
        return "U8";
    return (unsigned)t < DTYPE_COUNT ? formats[t].name : "unknown";
}

size_t dtype_row_bytes(enum dtype t, uint32_t n_cols)
{
    if ((unsigned)t >= DTYPE_COUNT || n_cols % formats[t].block_cols)
        return 0;
    return (size_t)(n_cols / formats[t].block_cols) * formats[t].block_bytes;
}

void kernels_thread_init(void)
{
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };

    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
}
