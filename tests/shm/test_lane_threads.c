/* Both ends as threads over one mapping: storms in which nothing may be lost, doubled or out of
 * order. Sleepers sleep for real; a wake that does not come within ten seconds is a lost one. */
#include "tests/shm/lane_pair.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#include "shm/doorbell.h"

struct storm {
    struct pair p;
    sem_t bell; /* to the daemon, instead of a socket */
    atomic_bool done;
    uint64_t n_requests;
    uint32_t n_new_max;
    bool sleeps; /* client waits by park and futex; else it spins */
    uint64_t n_dozes, n_parks;
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint32_t token_of(uint64_t user, uint32_t index)
{
    return (uint32_t)(user * 2654435761u + index * 40503u);
}

struct run {
    uint64_t user;
    uint32_t n_want, n_have;
    bool active, cancelled;
};

static const char *daemon_step(struct storm *s, struct run *runs, uint64_t *random)
{
    struct cb_lane *lane = s->p.lane;
    struct cb_request_entry entry;
    uint32_t slots[64];
    int r;

    while ((r = pair_intake(&s->p, &entry)) == CB_LANE_ENTRY || r == CB_LANE_CANCELLED) {
        if (r == CB_LANE_ENTRY)
            runs[entry.slot] =
                (struct run){.user = entry.user, .n_want = entry.max_new_tokens, .active = true};
    }
    if (r != CB_LANE_NOTHING && r != CB_LANE_WAITS)
        return "intake";
    for (uint32_t i = cb_lane_look_cancels(lane, slots); i-- > 0;)
        runs[slots[i]].cancelled = true;
    for (uint32_t slot = 0; slot < s->p.g.n_slots; slot++) {
        struct run *run = &runs[slot];
        struct cb_lane_end end = {.state = CB_SLOT_FINISHED, .finish = CB_FINISH_LENGTH};

        if (!run->active)
            continue;
        if (run->n_have < run->n_want && !run->cancelled && next_random(random) % 4) {
            cb_lane_token(lane, slot, token_of(run->user, run->n_have), run->n_have);
            run->n_have++;
        }
        if (run->cancelled)
            end.state = CB_SLOT_CANCELLED;
        else if (run->n_have < run->n_want)
            continue;
        run->active = false;
        end.text_bytes = run->n_have;
        cb_lane_end(lane, slot, &end);
    }
    r = cb_lane_flush(lane);
    if (r < 0)
        return "flush";
    if (r & CB_LANE_RING) {
        if (cb_doorbell_wake(cb_lane_bell(lane)) < 0)
            return "wake";
        cb_lane_answered(lane);
    }
    return NULL;
}

static bool is_any_active(const struct storm *s, const struct run *runs)
{
    for (uint32_t i = 0; i < s->p.g.n_slots; i++) {
        if (runs[i].active)
            return true;
    }
    return false;
}

static void *daemon_thread(void *arg)
{
    struct storm *s = arg;
    struct run runs[64] = {0};
    uint64_t random = 1234567;
    const char *why;

    while (!atomic_load(&s->done)) {
        struct timespec limit;
        const char *said = daemon_step(s, runs, &random);
        int r;

        if (said)
            return (void *)(uintptr_t)said;
        if (next_random(&random) % 64 == 0 && cb_lane_check(s->p.lane, &why) < 0)
            return (void *)(uintptr_t)why;
        if (is_any_active(s, runs))
            continue;
        cb_lane_doze(s->p.lane);
        cb_lane_doze_fence();
        r = cb_lane_look_again(s->p.lane, false);
        if (r == CB_LANE_NOTHING && !atomic_load(&s->done)) {
            s->n_dozes++;
            clock_gettime(CLOCK_REALTIME, &limit);
            limit.tv_sec += 10;
            while ((r = sem_timedwait(&s->bell, &limit)) < 0 && errno == EINTR)
                ;
            if (r < 0)
                return "the daemon slept for ten seconds with work waiting";
        }
        cb_lane_undoze(s->p.lane);
    }
    return NULL;
}

struct reader {
    uint64_t user;
    uint32_t gen, n_want, n_read;
    bool active, accepted, cancelled;
};

static void ring_if(struct storm *s, int r)
{
    if (r > 0 && (r & CB_LANE_RING)) {
        uint32_t doze = cb_lane_client_doze(s->p.client);

        sem_post(&s->bell);
        cb_lane_client_rang(s->p.client, doze);
    }
}

/* Hands out by index what is new; every id must be the one of its place. */
static const char *read_ids(struct storm *s, struct reader *reader, uint32_t slot)
{
    struct cb_slot_view view;

    cb_lane_client_slot(s->p.client, slot, &view);
    if (view.gen != reader->gen || !view.ids)
        return "a record of another generation";
    for (; reader->n_read < view.emitted; reader->n_read++) {
        if (view.ids[reader->n_read] != token_of(reader->user, reader->n_read) ||
            view.times[reader->n_read] != reader->n_read)
            return "a wrong id";
    }
    return NULL;
}

static const char *handle(struct storm *s, struct reader *readers, const struct cb_result_entry *e,
                          uint64_t *n_ended)
{
    struct reader *reader = &readers[e->slot];
    struct cb_slot_view view;
    const char *said = NULL;

    if (!reader->active || e->gen != reader->gen || e->user != reader->user)
        return "an entry for nobody";
    switch (e->type) {
    case CB_RESULT_ACCEPTED:
        if (reader->accepted)
            return "accepted twice";
        reader->accepted = true;
        return NULL;
    case CB_RESULT_TOKENS:
        return reader->accepted ? read_ids(s, reader, e->slot) : "tokens before acceptance";
    case CB_RESULT_FINISHED:
    case CB_RESULT_CANCELLED:
        break;
    default:
        return "an unexpected entry";
    }
    if (reader->n_want && reader->accepted)
        said = read_ids(s, reader, e->slot);
    cb_lane_client_slot(s->p.client, e->slot, &view);
    if (e->count != reader->n_read || view.text_bytes != reader->n_read)
        return "the end does not have what was read";
    if (e->type == CB_RESULT_FINISHED && reader->n_read != reader->n_want)
        return "finished without all its ids";
    if (e->type == CB_RESULT_CANCELLED && !reader->cancelled)
        return "cancelled by nobody";
    reader->active = false;
    (*n_ended)++;
    ring_if(s, cb_lane_client_free(s->p.client, e->slot));
    return said;
}

static const char *client_wait(struct storm *s)
{
    uint32_t seen;
    int r = 0;

    if (cb_lane_client_park(s->p.client, &seen) == CB_LANE_NOTHING) {
        s->n_parks++;
        while (r == 0 && !cb_lane_client_pending(s->p.client))
            r = cb_doorbell_wait(cb_lane_client_bell_word(s->p.client), seen, 10000000000ull);
    }
    cb_lane_client_unpark(s->p.client);
    return r ? "the client slept for ten seconds with results waiting" : NULL;
}

static const char *client_storm(struct storm *s)
{
    struct reader readers[64] = {0};
    uint64_t random = 7654321, n_sent = 0, n_ended = 0;
    const char *said = NULL;

    while (n_ended < s->n_requests && !said) {
        struct cb_result_entry e;
        bool idle = true;
        int r;

        if (n_sent < s->n_requests && cb_lane_client_can_submit(s->p.client, 1)) {
            struct cb_request_entry entry;
            uint32_t n_new = (uint32_t)(next_random(&random) % (s->n_new_max + 1));

            cb_message_init(&entry);
            entry.n_prompt = 1;
            entry.max_new_tokens = n_new;
            entry.planes = CB_PLANE_TIMES;
            entry.user = n_sent++;
            r = cb_lane_client_submit(s->p.client, &entry);
            if (r < 0)
                return "submit";
            readers[entry.slot] = (struct reader){
                .user = entry.user, .gen = entry.gen, .n_want = n_new, .active = true};
            ring_if(s, r);
            idle = false;
        }
        if (next_random(&random) % 8 == 0) {
            uint32_t slot = (uint32_t)(next_random(&random) % s->p.g.n_slots);

            if (readers[slot].active) {
                readers[slot].cancelled = true;
                ring_if(s, cb_lane_client_cancel(s->p.client, slot, readers[slot].gen));
            }
        }
        /* Now and then it reads nothing for a while. */
        for (uint32_t n = (uint32_t)(next_random(&random) % 4); n > 0 && !said; n--) {
            r = cb_lane_client_poll(s->p.client, &e);
            if (r < 0)
                return "poll";
            if (r == CB_LANE_NOTHING)
                break;
            ring_if(s, r);
            said = handle(s, readers, &e, &n_ended);
            idle = false;
        }
        if (idle && !said && s->sleeps && n_ended < s->n_requests)
            said = client_wait(s);
    }
    return said;
}

static void run_storm(struct cb_geometry *g, uint64_t n_requests, uint32_t n_new_max, bool sleeps)
{
    struct storm s = {.n_requests = n_requests, .n_new_max = n_new_max, .sleeps = sleeps};
    pthread_t thread;
    const char *said;
    void *daemon_said;

    pair_init_geometry(&s.p, g, UINT64_MAX - 100);
    cr_assert_eq(sem_init(&s.bell, 0, 0), 0);
    cr_assert_eq(pthread_create(&thread, NULL, daemon_thread, &s), 0);
    said = client_storm(&s);
    atomic_store(&s.done, true);
    sem_post(&s.bell);
    pthread_join(thread, &daemon_said);
    cr_assert_null(said, "client: %s", said);
    cr_assert_null(daemon_said, "daemon: %s", (const char *)daemon_said);
    pair_check(&s.p);
    sem_destroy(&s.bell);
    pair_fini(&s.p);
}

static struct cb_geometry geometry(uint32_t n_slots)
{
    struct cb_geometry g;

    cr_assert_eq(cb_geometry_make(&g, n_slots, 0, 0, 1000, 64), 0);
    return g;
}

/* 64 slots in memory for one context: requests wait for runs most of the time. */
static struct cb_geometry tight(uint32_t n_slots)
{
    struct cb_geometry g = geometry(n_slots);

    g.down_pool_bytes = 1024;
    return g;
}

Test(lane_threads, storm_with_sleep)
{
    struct cb_geometry g = geometry(16);

    run_storm(&g, 4000, 12, true);
}

Test(lane_threads, storm_without_sleep)
{
    struct cb_geometry g = geometry(16);

    run_storm(&g, 4000, 12, false);
}

Test(lane_threads, storm_with_too_little_pool)
{
    struct cb_geometry g = tight(16);

    run_storm(&g, 4000, 40, true);
}

Test(lane_threads, storm_on_the_smallest_rings)
{
    struct cb_geometry g = tight(1);

    g.req_capacity = 1;
    g.res_capacity = 4;
    run_storm(&g, 4000, 5, true);
    g = tight(2);
    g.req_capacity = 2;
    g.res_capacity = 8;
    run_storm(&g, 4000, 5, true);
}

/* Two tokens in two flushes, then silence until both were read: if the second found the entry of
 * the first unread, its reader must find the new count; if it was just given back, there must be a
 * new one. */
struct lockstep {
    struct pair p;
    uint32_t slot, n;
    atomic_uint n_read;
    atomic_bool stop;
};

static void *read_by_entries(void *arg)
{
    struct lockstep *l = arg;
    struct cb_result_entry e;

    while (!atomic_load(&l->stop)) {
        int r = cb_lane_client_poll(l->p.client, &e);

        if (r < 0)
            return "poll";
        if (r & CB_LANE_ENTRY)
            atomic_store(&l->n_read, cb_lane_client_emitted(l->p.client, e.slot));
        else
            sched_yield();
    }
    return NULL;
}

Test(lane_threads, no_token_is_left_without_an_entry)
{
    struct cb_geometry g;
    struct lockstep l = {.n = 20000};
    struct cb_request_entry entry;
    pthread_t thread;
    void *said;

    cr_assert_eq(cb_geometry_make(&g, 1, 0, 0, 1000, 2 * l.n), 0);
    pair_init_geometry(&l.p, &g, UINT64_MAX - 100);
    cr_assert_eq(pair_submit(&l.p, l.n, 0, &entry), 0);
    cr_assert_eq(pair_intake(&l.p, &entry), CB_LANE_ENTRY);
    cr_assert_eq(pthread_create(&thread, NULL, read_by_entries, &l), 0);
    for (uint32_t i = 0; i < l.n; i++) {
        time_t limit = time(NULL) + 10;

        cb_lane_token(l.p.lane, entry.slot, i, 0);
        cr_assert_eq(cb_lane_flush(l.p.lane), 0);
        while (i % 2 && atomic_load(&l.n_read) != i + 1) {
            cr_assert_lt(time(NULL), limit, "token %u has no entry", i);
            sched_yield();
        }
    }
    atomic_store(&l.stop, true);
    pthread_join(thread, &said);
    cr_assert_null(said);
    pair_fini(&l.p);
}
