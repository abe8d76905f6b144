#include "tests/bench/ipc/way.h"

#include <stddef.h>

const struct way *const ways[] = {
    &way_spin,  &way_ring,      &way_lane, &way_null_spin, &way_null_balanced, &way_null_eco,
    &way_futex, &way_semaphore, &way_pipe, &way_socket,    &way_mqueue,        &way_iceoryx,
    NULL};
