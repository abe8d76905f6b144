/* Prompts that were begun are finished before anybody decodes: the largest batches of decoding, at
 * the price of longer gaps between tokens. */
#include "daemon/sched/scheduler.h"

static uint32_t order(const struct list *active, struct request **out)
{
    uint32_t n = scheduler_pick(active, REQUEST_PREFILLING, out, 0);
    return scheduler_pick(active, REQUEST_DECODING, out, n);
}

const struct scheduler_policy scheduler_prefill_first = {
    .name = "prefill_first",
    .safety_margin = 0.0,
    .order = order,
};
