/* cache/sectors.h - the cache's memory in equal parts, which groups of layers take as they need.
 *
 * Carved once at start; it never grows. Sectors that nobody ever held are given out in ascending
 * order, so whoever backs them with memory needs one mark, not a map. Released ones are given out
 * again first, the latest first: they are warm. Engine thread only. */
#ifndef CB_DAEMON_CACHE_SECTORS_H
#define CB_DAEMON_CACHE_SECTORS_H

#include <stdbool.h>
#include <stdint.h>

struct sectors;                 /* opaque: its fields are in sectors.c */
#define SECTORS_NONE UINT32_MAX /* none is free */

/* Makes n of them, at least 1. 0 or -ENOMEM. */
int sectors_new(struct sectors **sectorsp, uint32_t n);
struct sectors *sectors_free(struct sectors *s); /* NULL is fine; returns NULL */

/* A free one, or SECTORS_NONE. */
uint32_t sectors_take(struct sectors *s);
/* It is held; if not, that is a fault, and nothing happens. */
void sectors_release(struct sectors *s, uint32_t sector_idx);

/* Whether this sector had a holder before it was last taken. */
bool sectors_was_held(const struct sectors *s, uint32_t sector_idx);

uint32_t sectors_n_total(const struct sectors *s);
uint32_t sectors_n_free(const struct sectors *s);

/* How often it was asked for what can't be: a fault of the callers. */
uint32_t sectors_n_faults(const struct sectors *s);

/* Makes it what its holders say: is_held[n_total]. No fault has ever been. */
void sectors_rebuild(struct sectors *s, const bool *is_held);

/* Audits: 0, or -EUCLEAN and *whyp a sentence. is_held[n_total]: what their holders say. */
int sectors_check(const struct sectors *s, const bool *is_held, const char **whyp);

#endif
