/* Who decodes goes on before anybody's prompt does: gaps between tokens stay small, prompts take
 * what the budget leaves. The margin keeps room for those who decode to grow. */
#include "daemon/sched/scheduler.h"

static uint32_t order(const struct list *active, struct request **out)
{
    uint32_t n = scheduler_pick(active, REQUEST_DECODING, out, 0);
    return scheduler_pick(active, REQUEST_PREFILLING, out, n);
}

const struct scheduler_policy scheduler_fifo = {
    .name = "fifo",
    .safety_margin = 0.15,
    .order = order,
};
