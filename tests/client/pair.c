/* tests/client/pair.c - see pair.h. */
#include "tests/client/pair.h"

#include <stdatomic.h>
#include <unistd.h>

struct pair start(const struct fake_config *config, uint32_t kind, uint32_t mode)
{
    struct cb_options o;
    struct pair p = {fake_start(config), NULL};
    cb_options_init(&o);
    o.run_dir = fake_dir(p.f);
    o.kind = kind;
    o.wait_mode = mode;
    cr_assert_eq(cb_open(&p.h, &o), 0, "%s", cb_message());
    return p;
}

struct pair start_plain(void)
{
    return start(&(struct fake_config){0}, CB_KIND_LATENCY, CB_WAIT_BALANCED);
}

void stop(struct pair p)
{
    cb_close(p.h);
    fake_stop(p.f);
}

struct cb_request request_of(const uint32_t *ids, size_t n, uint32_t limit)
{
    struct cb_request r;
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = n;
    r.max_new_tokens = limit;
    return r;
}

const uint32_t ids3[3] = {5, 6, 7};

uint64_t submit(struct cb_handle *h, uint32_t first, uint32_t limit, uint32_t flags)
{
    struct cb_request r = request_of(&first, 1, limit);
    uint64_t id;
    r.flags = flags;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    cr_assert(id > 0);
    return id;
}

struct cb_event take_all(struct cb_handle *h, uint64_t id, uint32_t first)
{
    struct cb_event e;
    uint32_t n = 0;
    for (;;) {
        int r = cb_wait(h, id, &e, HANG_MS);
        cr_assert_eq(r, 1, "%s", cb_message());
        cr_assert_eq(e.id, id);
        cr_assert(!e.n_ids || e.first == n);
        for (size_t i = 0; i < e.n_ids; i++, n++)
            cr_assert_eq(e.ids[i], (first + n) % FAKE_VOCAB);
        if (e.type != CB_EVENT_TOKENS)
            break;
        cr_assert(e.n_ids > 0);
    }
    cr_assert_eq(cb_wait(h, id, &(struct cb_event){0}, HANG_MS), CB_NOT_FOUND);
    return e;
}

void *take_all_thread(void *arg)
{
    struct waiter *w = arg;
    struct cb_event e = take_all(w->h, w->id, w->first);
    cr_assert_eq(e.end, CB_END_LENGTH);
    return NULL;
}

void *wait_released(void *arg)
{
    struct waiter *w = arg;
    struct cb_event e;
    return (void *)(intptr_t)cb_wait(w->h, w->id, &e, HANG_MS);
}

static void chain_handler(struct cb_handle *h, const struct cb_event *e, void *arg);

void chain_submit(struct cb_handle *h, struct chain *c)
{
    struct cb_request r = request_of(ids3, 3, 20);
    r.handler = chain_handler;
    r.handler_arg = c;
    r.flags = CB_AUTO_RELEASE;
    cr_assert_eq(cb_submit(h, &r, &c->id), 0, "%s", cb_message());
}

static void chain_handler(struct cb_handle *h, const struct cb_event *e, void *arg)
{
    struct chain *c = arg;
    cr_assert_eq(e->id, c->id);
    cr_assert_not(atomic_exchange(&c->inside, true), "two calls at a time");
    c->n_tokens += (int)e->n_ids;
    if (!c->nested)
        usleep(100);
    if (c->nested)
        cb_dispatch(h, 0);
    atomic_store(&c->inside, false);
    if (e->type == CB_EVENT_END) {
        c->n_ends++;
        c->end = e->end;
        if (c->n_left-- > 0)
            chain_submit(h, c); /* from inside; the slot of this one is not free yet */
    }
}
