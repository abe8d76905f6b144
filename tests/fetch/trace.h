/* tests/fetch/trace.h - which bytes of a region are loaded, and how often.
 *
 * The code under test is compiled with ThreadSanitizer's hooks before each of its loads, and linked
 * with trace.c instead of the sanitizer's runtime. Copies are seen too: the compiler makes calls of
 * them (-fno-builtin), and the linker brings those here (--wrap). One thread, one region at a time.
 *
 * A byte may be made another right after its first load, as a hostile writer would who knows the
 * moment: whoever loads it twice gets two values. */
#ifndef CB_TESTS_FETCH_TRACE_H
#define CB_TESTS_FETCH_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct trace {
    const unsigned char *base; /* as the code under test sees it, maybe read-only */
    unsigned char *mirror;     /* the same memory, writable */
    size_t bytes;
    uint8_t *n_loads;           /* [bytes], up to 255 */
    const unsigned char *after; /* [bytes]: what becomes of each; NULL: nothing */
};

/* From here on loads are noted in t, which is the caller's; trace_end stops that. */
void trace_begin(struct trace *t);
void trace_end(void);
/* None was loaded yet. */
void trace_clear(void);

#endif
