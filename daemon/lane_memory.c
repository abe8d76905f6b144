/* What can be cut short under the daemon, or lose pages, is guarded before the first look at it. */
#include "daemon/lane_memory.h"

#include <stdio.h>
#include <unistd.h>

#include "daemon/guard.h"

static int guard_one(struct lane_memory *m, int i, const struct cb_segment *s)
{
    if (!s->base)
        return 0;
    m->guards[i] = guard_add(s->base, s->bytes);
    return m->guards[i] < 0 ? m->guards[i] : 0;
}

static int guard_all(struct lane_memory *m, bool is_named, struct cb_why *why)
{
    int r = guard_one(m, 0, &m->up);
    if (r == 0 && is_named)
        r = guard_one(m, 1, &m->down);
    if (r == 0)
        r = guard_one(m, 2, &m->bell);
    if (r)
        snprintf(why->text, sizeof why->text, "no more than %d segments can be guarded",
                 GUARD_RANGES_MAX);
    return r;
}

int lane_memory_make(struct lane_memory *m, const struct lane_memory_wish *wish, int fds[2],
                     struct cb_why *why)
{
    const struct cb_names_lane lane = {.instance = wish->instance,
                                       .uid = wish->uid,
                                       .up_bytes = wish->up_bytes,
                                       .down_bytes = wish->down_bytes,
                                       .has_bell = wish->has_bell};
    *m = (struct lane_memory){.names = {.lock_fd = -1}, .guards = {-1, -1, -1}};
    fds[0] = fds[1] = -1;
    int r = wish->is_named ? cb_names_make_lane(&m->names, &lane, &m->up, &m->down, &m->bell, why)
                           : cb_segment_make_up(&m->up, &fds[0], wish->up_bytes, why);
    if (r == 0 && !wish->is_named)
        r = cb_segment_make_down(&m->down, &fds[1], wish->down_bytes, why);
    if (r == 0)
        r = cb_segment_private(&m->record, wish->record_bytes, why);
    if (r == 0)
        r = guard_all(m, wish->is_named, why);
    if (r == 0)
        return 0;
    lane_memory_end(m);
    cb_segment_unmap(&m->record);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
    return r;
}

void lane_memory_unname(struct lane_memory *m)
{
    cb_names_unlink(&m->names);
}

bool lane_memory_is_broken(const struct lane_memory *m)
{
    bool is_broken = false;
    for (int i = 0; i < LANE_MEMORY_GUARDS; i++)
        is_broken |= guard_is_broken(m->guards[i]);
    return is_broken;
}

void lane_memory_end(struct lane_memory *m)
{
    cb_names_unlink(&m->names);
    for (int i = 0; i < LANE_MEMORY_GUARDS; i++) {
        guard_remove(m->guards[i]);
        m->guards[i] = -1;
    }
    cb_segment_unmap(&m->up);
    cb_segment_unmap(&m->down);
    cb_segment_unmap(&m->bell);
}
