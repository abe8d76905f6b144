/* daemon/loop_choose.c - which body a loop has: the one that is asked for, or the best that works here. */
#include "daemon/loop_body.h"

#include <string.h>

#include "daemon/base/log.h"

int loop_new(struct loop **loopp, enum loop_kind kind, uint32_t n_watches,
             const struct clock *clock, struct log *log)
{
    if (kind == LOOP_EPOLL)
        return loop_epoll_new(loopp, n_watches, clock, log);
    int r = loop_uring_new(loopp, n_watches, clock, log);
    if (r && kind == LOOP_AUTO) {
        log_info(log, "io_uring is refused here (%s); waiting with epoll", strerror(-r));
        r = loop_epoll_new(loopp, n_watches, clock, log);
    }
    return r;
}
