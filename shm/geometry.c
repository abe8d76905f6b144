/* Parts follow one another, each on its own cache lines. The client checks the numbers as if they
 * came from an enemy: not because the daemon is one, but because a wrong version must end in a
 * refusal and not in a wild store. */
#include "shm/geometry.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#define SEGMENT_BYTES_MAX (1ull << 40)
#define PART_ALIGN        128u

static uint64_t align_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

static uint32_t power_of_two_from(uint32_t n)
{
    uint32_t power = 1;

    while (power < n)
        power *= 2;
    return power;
}

/* Puts n elements of `size` behind *bytesp if there are any: where, or 0. */
static uint64_t put_plane(uint64_t *bytesp, bool wanted, uint64_t n, uint64_t size)
{
    uint64_t off = *bytesp;

    if (!wanted || !n)
        return 0;
    *bytesp = align_up(off + n * size, 8);
    return off;
}

struct cb_run_layout cb_run_layout(uint32_t n_tokens, uint32_t n_prompt, uint32_t planes)
{
    uint64_t bytes = align_up(4ull * n_tokens, 8),
             top = cb_planes_k(planes) * sizeof(struct cb_top);
    bool prompt = (planes & CB_PLANE_PROMPT) != 0, topk = top != 0;
    struct cb_run_layout layout = {0};

    /* An offset of 0 says that there is none: what comes first without ids begins behind a gap. */
    if (!n_tokens && prompt)
        bytes = 8;
    layout.times_off = put_plane(&bytes, (planes & CB_PLANE_TIMES) != 0, n_tokens, 8);
    layout.logprobs_off = put_plane(&bytes, (planes & CB_PLANE_LOGPROBS) != 0, n_tokens, 4);
    layout.topk_off = put_plane(&bytes, topk, n_tokens, top);
    layout.epochs_off = put_plane(&bytes, (planes & CB_PLANE_EPOCHS) != 0, n_tokens, 4);
    layout.prompt_off = put_plane(&bytes, prompt, n_prompt, 4);
    layout.prompt_topk_off = put_plane(&bytes, prompt && topk, n_prompt, top);
    layout.bytes = align_up(bytes, CB_RUN_ALIGN);
    return layout;
}

uint32_t cb_run_tokens_max(uint64_t bytes, uint32_t n_prompt, uint32_t planes)
{
    uint32_t least = 0, most = UINT32_MAX; /* least tokens fit, or none do */

    if (cb_run_layout(most, n_prompt, planes).bytes <= bytes)
        return most;
    while (most - least > 1) {
        uint32_t n = least + (most - least) / 2;

        if (cb_run_layout(n, n_prompt, planes).bytes <= bytes)
            least = n;
        else
            most = n;
    }
    return least;
}

int cb_geometry_make(struct cb_geometry *g, uint32_t n_slots, uint64_t arena_bytes,
                     uint64_t pool_bytes, uint32_t n_vocab, uint32_t n_context)
{
    uint64_t arena_least = align_up(4ull * n_context, CB_PAGE) + CB_OPTIONS_MAX;
    /* A prompt's token takes less room than a generated one, but its plane may be padded. */
    uint64_t pool_least =
        cb_run_layout(n_context, 0, CB_PLANES_UNDERSTOOD & ~CB_PLANE_TOPK).bytes + CB_RUN_ALIGN;

    memset(g, 0, sizeof *g);
    if (!n_vocab || !n_context)
        return -EINVAL;
    if (arena_bytes < arena_least)
        arena_bytes = arena_least;
    if (pool_bytes < pool_least)
        pool_bytes = pool_least;
    /* Each is compared alone: a sum could wrap. */
    if (arena_bytes > SEGMENT_BYTES_MAX / 2 || pool_bytes > SEGMENT_BYTES_MAX / 2)
        return -EOVERFLOW;
    if (n_slots < 1)
        n_slots = 1;
    if (n_slots > CB_SLOTS_MAX)
        n_slots = CB_SLOTS_MAX;

    g->n_slots = n_slots;
    g->n_vocab = n_vocab;
    g->n_context = n_context;
    g->req_capacity =
        power_of_two_from(n_slots < CB_RING_CAPACITY_MIN ? CB_RING_CAPACITY_MIN : n_slots);
    g->req_stride = sizeof(struct cb_request_entry);
    g->res_capacity = power_of_two_from(4 * n_slots + 8);
    g->res_stride = sizeof(struct cb_result_entry);
    g->slot_stride = sizeof(struct cb_slot);

    g->up_slots_off = CB_PAGE;
    g->up_ring_off =
        align_up(g->up_slots_off + (uint64_t)n_slots * sizeof(struct cb_slot_words), PART_ALIGN);
    g->up_arena_off =
        align_up(g->up_ring_off + (uint64_t)g->req_capacity * g->req_stride, PART_ALIGN);
    g->up_bytes = align_up(g->up_arena_off + arena_bytes, CB_PAGE);
    g->up_arena_bytes = g->up_bytes - g->up_arena_off;

    g->down_slots_off = 2 * CB_PAGE;
    g->down_ring_off = align_up(g->down_slots_off + (uint64_t)n_slots * g->slot_stride, PART_ALIGN);
    g->down_pool_off =
        align_up(g->down_ring_off + (uint64_t)g->res_capacity * g->res_stride, PART_ALIGN);
    g->down_bytes = align_up(g->down_pool_off + pool_bytes, CB_PAGE);
    g->down_pool_bytes = g->down_bytes - g->down_pool_off;
    return 0;
}

static bool is_power_of_two(uint32_t n)
{
    return n && (n & (n - 1)) == 0;
}

/* n elements of `stride` at *off lie past `floor` and end before `end`; floor moves behind them. */
static bool part_fits(uint64_t off, uint64_t n, uint64_t stride, uint64_t *floor, uint64_t end)
{
    if (off % 8 || off < *floor || off > end || n > (end - off) / stride)
        return false;
    *floor = off + n * stride;
    return true;
}

int cb_geometry_check(const struct cb_geometry *g)
{
    uint64_t up = sizeof(struct cb_up_hot), down = CB_PAGE + sizeof(struct cb_down_hot);

    if (g->n_slots < 1 || g->n_slots > CB_SLOTS_MAX || !g->n_vocab || !g->n_context)
        return -EPROTO;
    if (!is_power_of_two(g->req_capacity) || !is_power_of_two(g->res_capacity) ||
        g->res_capacity < 4 * g->n_slots + 1)
        return -EPROTO;
    if (g->req_stride < sizeof(struct cb_request_entry) || g->req_stride % 8 ||
        g->res_stride < sizeof(struct cb_result_entry) || g->res_stride % 8 ||
        g->slot_stride < sizeof(struct cb_slot) || g->slot_stride % 8)
        return -EPROTO;
    if (g->up_bytes > SEGMENT_BYTES_MAX || g->down_bytes > SEGMENT_BYTES_MAX)
        return -EPROTO;
    if (!part_fits(g->up_slots_off, g->n_slots, sizeof(struct cb_slot_words), &up, g->up_bytes) ||
        !part_fits(g->up_ring_off, g->req_capacity, g->req_stride, &up, g->up_bytes) ||
        !part_fits(g->up_arena_off, g->up_arena_bytes, 1, &up, g->up_bytes))
        return -EPROTO;
    if (!part_fits(g->down_slots_off, g->n_slots, g->slot_stride, &down, g->down_bytes) ||
        !part_fits(g->down_ring_off, g->res_capacity, g->res_stride, &down, g->down_bytes) ||
        !part_fits(g->down_pool_off, g->down_pool_bytes, 1, &down, g->down_bytes))
        return -EPROTO;
    return 0;
}
