#include "daemon/named.h"

#include <errno.h>

#include "shm/doorbell.h"
#include "shm/geometry.h"

int named_open(struct named *n, const struct settings *set, const struct cb_segment *vocab,
               char *message)
{
    struct cb_why why;
    *n = (struct named){.vocab = {.lock_fd = -1}};
    cb_names_sweep(set->instance);
    int r = uids_parse("named_uids", set->named_uids, &n->uids, message);
    if (r || n->uids.n == 0)
        return r;
    if (!cb_semaphore_is_known())
        return refuse(message, -ENOTSUP,
                      "this C library's semaphores are of an unknown make, so named_uids must be "
                      "empty");
    r = cb_names_make_vocab(&n->vocab, set->instance, n->uids.of, n->uids.n, vocab->base,
                            vocab->bytes, &why);
    return r ? refuse(message, r, "%s; or let nobody have lanes by name (named_uids)", why.text)
             : 0;
}

void named_close(struct named *n)
{
    cb_names_unlink(&n->vocab);
}

void named_report(const struct named *n, const struct settings *set, uint32_t n_vocab,
                  uint32_t n_context, struct log *log)
{
    struct cb_geometry g;
    if (n->uids.n == 0 ||
        cb_geometry_make(&g, (uint32_t)set->lane_slots, set->lane_arena_bytes,
                         set->lane_pool_tokens * sizeof(uint32_t), n_vocab, n_context))
        return;
    uint64_t room = cb_names_room();
    log_info(log,
             "lanes by name for %u of the users (named_uids): /dev/shm has %llu MiB free, for %llu "
             "of the usual ones",
             n->uids.n, (unsigned long long)(room >> 20),
             (unsigned long long)(room / (g.up_bytes + g.down_bytes + CB_PAGE)));
}
