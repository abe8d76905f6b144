/* kernels/cpu/memory.h - memory that the system backs when it is first written, on huge pages where
 * much of it is read in order: a step of decoding reads every weight once, and walks through page
 * tables would cost it a tenth.
 *
 * Huge pages are a wish: a system that gives none, or has none left, gives small ones. */
#ifndef CB_KERNELS_CPU_MEMORY_H
#define CB_KERNELS_CPU_MEMORY_H

#include <stddef.h>

/* Zeroed, a small page at a time, aligned to one; NULL: no address space. Freed with the same size. */
void *memory_new(size_t bytes);
void *memory_free(void *data, size_t bytes); /* NULL is fine; returns NULL */

/* The same on huge pages, aligned to one. */
void *memory_huge_new(size_t bytes);

/* Many pieces side by side on huge pages, each far smaller than it would waste alone. All zero: an
 * empty one. One thread at a time. */
struct arena {
    struct region *last;
};

/* 64-byte aligned, zeroed; NULL: no memory. */
void *arena_take(struct arena *a, size_t bytes);

/* Gives a piece back; memory goes back to the system when all pieces around it have. */
void arena_give(struct arena *a, void *data);

#endif
