/* What no code of ours may do with memory that another process writes. */
#include "tests/fetch/traced/samples.h"

#include <stdatomic.h>
#include <string.h>

bool sample_plain(const struct sample_record *r)
{
    const volatile uint32_t *word = &r->words[0];
    uint32_t first = *word;
    return first != *word;
}

bool sample_atomic(const struct sample_record *r)
{
    const _Atomic uint32_t *word = (const _Atomic uint32_t *)(const void *)&r->words[0];
    uint32_t first = atomic_load_explicit(word, memory_order_relaxed);
    return first != atomic_load_explicit(word, memory_order_relaxed);
}

bool sample_memcpy(const struct sample_record *r)
{
    struct sample_record a, b;
    memcpy(&a, r, sizeof a);
    memcpy(&b, r, sizeof b);
    return memcmp(&a, &b, sizeof a) != 0;
}

bool sample_struct(const struct sample_record *r)
{
    const volatile struct sample_record *shared = r;
    struct sample_record a = *shared;
    struct sample_record b = *shared;
    return memcmp(&a, &b, sizeof a) != 0;
}

/* The classic: a length is checked where it lies, then copied with the rest. */
bool sample_check_then_use(const struct sample_record *r)
{
    struct sample_record copy;
    if (r->words[0] > 100)
        return false;
    memcpy(&copy, r, sizeof copy);
    return copy.words[0] > 100;
}

uint32_t sample_once(const struct sample_record *r)
{
    struct sample_record copy;
    memcpy(&copy, r, sizeof copy);
    return copy.words[0] + copy.words[7];
}
