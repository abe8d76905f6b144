#include "tests/system/zoo.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

const struct zoo_cell zoo_elsewhere[] = {
    {"wrap of cursors at 2^64", "simulations, which begin there; tests/explore"},
    {"staging: write and punch while it is read", "weights: what_is_sent_wrongly_is_refused"},
    {"descriptor of a FUSE file", "any descriptor is refused, before the kernel looks what it is"},
    {"exit between any two stores", "crashes; torture: killed_at_any_instruction"},
    {"SIGSTOP; read nothing", "death: one_stands_still_for_a_while, who_never_reads_..."},
    {"STATUS name taken", "start: status_names_that_are_taken"},
    {"fill /dev/shm from outside; descriptors used up", "environments"},
    {"each rule of resume, at each token", "daemon suite: resume; here each once"},
    {"resume, then stop or die, again and again; longest resumes on all lanes", "kills"},
    {"named lanes truncated", "named_harm: what_is_cut_short_breaks_one_lane"},
    {NULL, NULL},
};

bool cage_open(struct cage *k, struct crowd *c, uint32_t i)
{
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    *k = (struct cage){.random = 1000 + i};
    hello.features = CB_FEATURES & ~CB_FEATURE_DEFAULTS;
    struct cb_refused refused;
    int type = 0;
    for (int n = 0; n < HANG_MS && type != CB_RECORD_WELCOME;) {
        if (!raw_connect(&k->raw, c->system) || !raw_send(&k->raw, &hello, sizeof hello))
            type = 0;
        else
            type = raw_receive(&k->raw, record);
        if (type != CB_RECORD_WELCOME) {
            memcpy(&refused, record, sizeof refused);
            /* Kept out after a lane that broke a rule: for a while, and anew for each that another process of
             * its user breaks. */
            n += type != CB_RECORD_REFUSED || refused.status != CB_BUSY;
            raw_close(&k->raw);
            if (atomic_load(&c->shared->go))
                return false;
            crowd_move(c);
            nap();
        }
    }
    member_expect(c, type == CB_RECORD_WELCOME, "no lane");
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    void *memory = calloc(1, cb_lane_client_bytes(g));
    member_expect(
        c, memory && cb_lane_client_init(&k->lc, memory, g, k->raw.up.base, k->raw.down.base) == 0,
        "its lane makes no sense");
    raw_send_plain(&k->raw, CB_RECORD_READY);
    return true;
}

void cage_close(struct cage *k)
{
    raw_close(&k->raw);
    free(k->lc);
    k->lc = NULL;
}

struct cb_request_entry cage_entry(struct cage *k, uint32_t n_prompt)
{
    uint32_t ids[64];
    for (uint32_t i = 0; i < 64; i++)
        ids[i] = draw(&k->random, 40000);
    if (n_prompt > 64)
        n_prompt = 64;
    cb_lane_client_write_arena(k->lc, 0, ids, n_prompt * sizeof ids[0]);
    return (struct cb_request_entry){.op = CB_OP_GENERATE,
                                     .flags = CB_FLAG_IGNORE_EOS,
                                     .n_children = 1,
                                     .n_prompt = n_prompt,
                                     .top_p = 1,
                                     .max_new_tokens = 20};
}

bool cage_submit(struct cage *k, struct cb_request_entry *e)
{
    if (cb_lane_client_submit(k->lc, e) < 0)
        return false;
    for (uint32_t i = 0; i < e->n_children && e->slot + i < k->raw.welcome.geometry.n_slots; i++)
        k->is_held[e->slot + i] = true;
    return true;
}

static bool is_end(const struct cage *k, const struct cb_result_entry *e)
{
    return (e->type == CB_RESULT_REJECTED || e->type == CB_RESULT_FINISHED ||
            e->type == CB_RESULT_CANCELLED || e->type == CB_RESULT_FAILED) &&
           e->slot < k->raw.welcome.geometry.n_slots && k->is_held[e->slot];
}

bool cage_turn(struct cage *k)
{
    struct cb_result_entry e;
    struct pollfd p = {k->raw.sock, POLLIN, 0};
    int r;
    for (int n = 0; n < 256 && (r = cb_lane_client_poll(k->lc, &e)) > 0 && r & CB_LANE_ENTRY; n++)
        if (is_end(k, &e)) {
            k->is_held[e.slot] = false;
            (void)cb_lane_client_free(k->lc, e.slot);
        }
    bool rang = raw_send_plain(&k->raw, CB_RECORD_BELL);
    return rang && !(poll(&p, 1, 0) > 0 && p.revents & POLLHUP) && !cb_lane_client_closed(k->lc);
}
