/* tests/fetch/traced/samples.h - every way to load a record twice, compiled as the code under test
 * is: what the trace must see. */
#ifndef CB_TESTS_FETCH_TRACED_SAMPLES_H
#define CB_TESTS_FETCH_TRACED_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

struct sample_record {
    uint32_t words[8];
};

/* Each loads words[0], or all of it, twice, and returns whether it got two values. */
bool sample_plain(const struct sample_record *r);
bool sample_atomic(const struct sample_record *r);
bool sample_memcpy(const struct sample_record *r);
bool sample_struct(const struct sample_record *r);
bool sample_check_then_use(const struct sample_record *r);
/* Once. */
uint32_t sample_once(const struct sample_record *r);

#endif
