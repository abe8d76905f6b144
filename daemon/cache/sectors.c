/* A stack of released ids over a mark below which all ids have been held at least once. Both ends
 * are O(1), nothing is ever searched, and a start touches no memory that grows with the cache (the
 * arrays come zeroed from the kernel). A bitmap would find low ids, which nobody needs. */
#include "daemon/cache/sectors.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum sector_state { SECTOR_NEVER_HELD, SECTOR_HELD, SECTOR_HELD_AGAIN, SECTOR_RELEASED };

struct sectors {
    uint32_t n;
    uint32_t n_ever_held; /* ids below were held at least once */
    uint32_t n_released;  /* entries of the stack              */
    uint32_t n_faults;
    uint32_t *released; /* [n] stack of ids                  */
    uint8_t *state;     /* [n] enum sector_state             */
};

int sectors_new(struct sectors **sectorsp, uint32_t n)
{
    assert(n > 0);
    struct sectors *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->n = n;
    s->released = calloc(n, sizeof *s->released);
    s->state = calloc(n, sizeof *s->state);
    if (!s->released || !s->state) {
        sectors_free(s);
        return -ENOMEM;
    }
    *sectorsp = s;
    return 0;
}

struct sectors *sectors_free(struct sectors *s)
{
    if (s) {
        free(s->released);
        free(s->state);
        free(s);
    }
    return NULL;
}

uint32_t sectors_take(struct sectors *s)
{
    while (s->n_released > 0) {
        uint32_t id = s->released[--s->n_released];
        if (id < s->n && s->state[id] == SECTOR_RELEASED) {
            s->state[id] = SECTOR_HELD_AGAIN;
            return id;
        }
        s->n_faults++; /* it is held: whoever gave it back had no right to */
    }
    if (s->n_ever_held == s->n)
        return SECTORS_NONE;
    s->state[s->n_ever_held] = SECTOR_HELD;
    return s->n_ever_held++;
}

void sectors_release(struct sectors *s, uint32_t sector_idx)
{
    if (sector_idx >= s->n_ever_held || s->state[sector_idx] == SECTOR_RELEASED) {
        s->n_faults++;
        return;
    }
    s->state[sector_idx] = SECTOR_RELEASED;
    s->released[s->n_released++] = sector_idx;
}

bool sectors_was_held(const struct sectors *s, uint32_t sector_idx)
{
    assert(sector_idx < s->n);
    return s->state[sector_idx] == SECTOR_HELD_AGAIN || s->state[sector_idx] == SECTOR_RELEASED;
}

uint32_t sectors_n_total(const struct sectors *s)
{
    return s->n;
}

uint32_t sectors_n_free(const struct sectors *s)
{
    return s->n_released + (s->n - s->n_ever_held);
}

uint32_t sectors_n_faults(const struct sectors *s)
{
    return s->n_faults;
}

void sectors_rebuild(struct sectors *s, const bool *is_held)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (is_held[i] && i >= s->n_ever_held)
            s->n_ever_held = i + 1;
    s->n_released = s->n_faults = 0;
    for (uint32_t i = s->n_ever_held; i-- > 0;) {
        s->state[i] = is_held[i] ? SECTOR_HELD_AGAIN : SECTOR_RELEASED;
        if (!is_held[i])
            s->released[s->n_released++] = i;
    }
}

static int unclean(const char **whyp, const char *why)
{
    *whyp = why;
    return -EUCLEAN;
}

int sectors_check(const struct sectors *s, const bool *is_held, const char **whyp)
{
    if (s->n_ever_held > s->n || s->n_released > s->n_ever_held)
        return unclean(whyp, "sectors: more released or held than there are");
    uint32_t n_released = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        bool held = s->state[i] == SECTOR_HELD || s->state[i] == SECTOR_HELD_AGAIN;
        if ((i >= s->n_ever_held) != (s->state[i] == SECTOR_NEVER_HELD))
            return unclean(whyp, "sectors: one is on the wrong side of the mark");
        if (held != is_held[i])
            return unclean(whyp, "sectors: holder and pool disagree about one");
        n_released += s->state[i] == SECTOR_RELEASED;
    }
    if (n_released != s->n_released)
        return unclean(whyp, "sectors: the stack is not what was released");
    for (uint32_t i = 0; i < s->n_released; i++)
        if (s->released[i] >= s->n || s->state[s->released[i]] != SECTOR_RELEASED)
            return unclean(whyp, "sectors: the stack holds one that is not released");
    return 0;
}
