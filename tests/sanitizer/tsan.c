/* tests/sanitizer/tsan.c - linked into every program of the ThreadSanitizer build, and into no other.
 *
 * Criterion keeps what it shares with its test processes in an arena at an address of its own
 * choice, 2^45 + 2^24 * rand_r(), taken modulo 2^22, mapped with MAP_FIXED. ThreadSanitizer refuses
 * such a mapping unless it lies where it expects a program's own memory, which on x86-64 is about
 * one place in a hundred: three refusals, and the run ends before the first test. So the program
 * brings its own rand_r, whose values all lead to [0x550000000000, 0x555550000000): the program's,
 * and always below the place where Linux loads position-independent programs, heaps above it, so
 * nothing else is there in the test's process, which maps the arena at the same address unasked.
 * Criterion still steps over a place that is taken. */
#include <stdlib.h>

/* The compiler's run-time library and Criterion's look these up in the program. */
#define VISIBLE __attribute__((visibility("default")))

VISIBLE const char *__tsan_default_options(void);

VISIBLE int rand_r(unsigned int *seed)
{
    enum { FIRST = 0x350000, COUNT = 0x5550 };

    *seed = *seed * 1103515245u + 12345u;
    return (int)(FIRST + (*seed >> 8) % COUNT);
}

/* A test tells its outcome before it exits, so a race reported by the exit status alone would count
 * as passed: end at the race. */
VISIBLE const char *__tsan_default_options(void)
{
    return "halt_on_error=1";
}
