/* The explorer. An execution is a sequence of choices: who runs next, and which store each load
 * returns. Choices stand on a stack; after an execution the last one that has an alternative is
 * advanced and the whole case runs again from its start. Re-running is cheap (a case is some
 * hundred accesses) and needs no copies of stacks. What makes it finish is the cache of states: a
 * thread's position is determined by what it has read, so a digest of reads, histories and views
 * identifies a state.
 *
 * A thread gives way only where the order between threads can matter: before loads, fences and
 * compare-and-swaps. Not before a store: whatever another thread could have read before it can
 * still be read after it, as a stale value, so coming early loses no execution. This needs that the
 * word has one writer and no futex compares it; where that turns out false, the word is marked and
 * the exploration begins again. Likewise not before a load of a word that no other thread writes. Nor at
 * data, which is checked for races instead. */
#include "tests/explore/explorer.h"

#include <assert.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum {
    LOCATIONS_MAX = 192,
    STORES_MAX = 96,
    CHOICES_MAX = 8192,
    STACK_BYTES = 128 * 1024,
    SITES_MAX = 256,
    PRIVATE_MAX = 8,
    LOCKS_MAX = 4,
    REGIONS_MAX = 8,
};

struct view {
    uint16_t at[LOCATIONS_MAX];          /* index of the newest store known, a location */
    uint16_t clock[EXPLORE_THREADS_MAX]; /* a thread's accesses that happened before     */
};

struct store {
    uint64_t value;
    struct view view; /* what an acquire of it learns */
    uint64_t digest;
    unsigned writer;
};

struct location {
    const void *p;
    unsigned bytes;
    unsigned n;
    bool ordered; /* when a store comes matters: two threads store here, or a futex compares */
    unsigned loaders, writers; /* threads that do, a bit each; in all executions so far */
    bool is_stored;            /* and not only added to */
    bool is_counted;           /* added to, as if nobody loaded it */
    struct store store[STORES_MAX];
    /* The newest access a thread, by its own clock; 0: none. Of data (copies), and of any kind. */
    uint16_t data_read[EXPLORE_THREADS_MAX], data_written[EXPLORE_THREADS_MAX];
    uint16_t used[EXPLORE_THREADS_MAX];
};

struct lock {
    const void *p;
    bool held;
    unsigned holder;
    unsigned n_holds; /* that there were */
    struct view view; /* what the last holder knew when it let go */
};

/* Memory that is not there all the time. */
struct region {
    const char *p;
    size_t bytes;
    unsigned threads; /* whose it is, a bit each */
    unsigned mapper;
    uint16_t since; /* the mapper's clock; 0: from the start */
    bool gone;
};

struct thread {
    struct view now;      /* what it knows */
    struct view acquired; /* what its relaxed loads since the last fence would have taught it */
    struct view released; /* what it knew at its last fence */
    uint64_t reads;       /* digest of all it has read: its position */
    bool ended;
    const void *futex;        /* waits on it, or NULL */
    const struct lock *mutex; /* likewise */
    bool (*ready)(void *);
    void *ready_arg;
    jmp_buf at;
    bool started, chosen; /* chosen: it was started to take the next access */
    ucontext_t first;
    char *stack;
};

struct choice {
    uint16_t n, taken;
};

static struct {
    const struct explore_case *c;
    struct explore_result *result;
    struct location location[LOCATIONS_MAX];
    unsigned n_locations;
    struct thread thread[EXPLORE_THREADS_MAX];
    unsigned running; /* index of the current thread */
    bool active;      /* inside an execution */
    unsigned n_preemptions;
    struct view global; /* of sequentially consistent fences */
    struct choice choice[CHOICES_MAX];
    unsigned n_choices, n_replayed;
    uint64_t *seen; /* open addressing, 0: empty */
    size_t seen_capacity, n_seen;
    jmp_buf main;
    struct {
        const void *p;
        size_t bytes;
    } private[PRIVATE_MAX];
    unsigned n_private;
    struct lock lock[LOCKS_MAX];
    unsigned n_locks;
    struct region region[REGIONS_MAX];
    unsigned n_regions;
    struct explore_site site[SITES_MAX];
    size_t n_sites;
    const char *weak_file;
    int weak_line;
    bool trace, tracing, newest_only, at_all;
} x;

enum { EXECUTION_ENDED = 1, EXECUTION_PRUNED, EXECUTION_FAILED, EXECUTION_RESTART };

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

static uint64_t mix_bytes(uint64_t h, const void *p, size_t bytes)
{
    const uint8_t *b = p;

    for (; bytes >= 8; b += 8, bytes -= 8) {
        uint64_t v;

        memcpy(&v, b, 8);
        h = mix(h, v);
    }
    for (; bytes; b++, bytes--)
        h = mix(h, *b);
    return h;
}

static void view_join(struct view *into, const struct view *from)
{
    for (unsigned i = 0; i < LOCATIONS_MAX; i++)
        into->at[i] = from->at[i] > into->at[i] ? from->at[i] : into->at[i];
    for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++)
        into->clock[t] = from->clock[t] > into->clock[t] ? from->clock[t] : into->clock[t];
}

/* Only what is not 0: a location that no thread has touched yet leaves no trace in a digest. */
static uint64_t view_digest(uint64_t h, const struct view *v)
{
    for (unsigned i = 0; i < x.n_locations; i++) {
        if (v->at[i])
            h = mix(h, (uint64_t)i << 16 | v->at[i]);
    }
    for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++)
        h = mix(h, v->clock[t]);
    return h;
}

/* ---- choices and states ---------------------------------------------------------------------- */

static unsigned choose(unsigned n)
{
    if (n <= 1)
        return 0;
    if (x.n_replayed < x.n_choices)
        return x.choice[x.n_replayed++].taken;
    assert(x.n_choices < CHOICES_MAX);
    x.choice[x.n_choices++] = (struct choice){(uint16_t)n, 0};
    x.n_replayed = x.n_choices;
    return 0;
}

/* Moves to the next unexplored execution; false if there is none. */
static bool advance(void)
{
    while (x.n_choices) {
        struct choice *last = &x.choice[x.n_choices - 1];

        if (++last->taken < last->n)
            return true;
        x.n_choices--;
    }
    return false;
}

/* Adds the state; true if it was there. */
static bool seen_before(uint64_t digest)
{
    size_t i;

    if (!digest)
        digest = 1;
    if (x.n_seen * 2 >= x.seen_capacity) {
        size_t capacity = x.seen_capacity ? x.seen_capacity * 2 : 1 << 16;
        uint64_t *table = calloc(capacity, sizeof *table);

        assert(table);
        for (size_t k = 0; k < x.seen_capacity; k++) {
            if (!x.seen[k])
                continue;
            for (i = x.seen[k] & (capacity - 1); table[i]; i = (i + 1) & (capacity - 1))
                ;
            table[i] = x.seen[k];
        }
        free(x.seen);
        x.seen = table;
        x.seen_capacity = capacity;
    }
    for (i = digest & (x.seen_capacity - 1); x.seen[i]; i = (i + 1) & (x.seen_capacity - 1)) {
        if (x.seen[i] == digest)
            return true;
    }
    x.seen[i] = digest;
    x.n_seen++;
    return false;
}

static uint64_t state_digest(void)
{
    uint64_t h = 0;

    for (unsigned t = 0; t < x.c->n_threads; t++) {
        const struct thread *th = &x.thread[t];

        h = mix(h, th->reads);
        h = mix(h, (uint64_t)(uintptr_t)th->futex + (uint64_t)(uintptr_t)th->mutex + th->ended);
        h = view_digest(h, &th->now);
        h = view_digest(h, &th->acquired);
        h = view_digest(h, &th->released);
    }
    h = view_digest(h, &x.global);
    for (unsigned i = 0; i < x.n_locations; i++) {
        const struct location *l = &x.location[i];
        unsigned oldest = l->n - 1;

        if (!oldest)
            continue;
        for (unsigned t = 0; t < x.c->n_threads; t++) {
            if (!x.thread[t].ended && x.thread[t].now.at[i] < oldest)
                oldest = x.thread[t].now.at[i];
        }
        h = mix(h, (uint64_t)i << 8 | l->n);
        for (unsigned k = oldest; k < l->n; k++)
            h = mix(h, l->store[k].digest);
    }
    for (unsigned i = 0; i < x.n_locks; i++)
        h = view_digest(
            mix(mix(h, (uintptr_t)x.lock[i].p), x.lock[i].n_holds << 1 | x.lock[i].held),
            &x.lock[i].view);
    for (unsigned i = 0; i < x.n_private; i++)
        h = mix_bytes(h, x.private[i].p, x.private[i].bytes);
    if (x.c->preemptions)
        h = mix(h, ((uint64_t)x.n_preemptions << 8) + x.running + 1);
    return h;
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool runnable(unsigned t)
{
    const struct thread *th = &x.thread[t];

    return !th->ended && !th->futex && !(th->mutex && th->mutex->held) &&
           (!th->ready || th->ready(th->ready_arg));
}

static _Noreturn void leave(int how)
{
    x.active = false;
    _longjmp(x.main, how);
}

static _Noreturn void fail(const char *text)
{
    x.result->failed = true;
    snprintf(x.result->why, sizeof x.result->why, "%s", text);
    leave(EXECUTION_FAILED);
}

static void thread_main(void)
{
    extern void explore_thread_end(void);

    x.c->thread[x.running]();
    explore_thread_end();
}

static _Noreturn void resume(unsigned t)
{
    struct thread *th = &x.thread[t];

    x.running = t;
    if (th->started)
        _longjmp(th->at, 1);
    th->started = th->chosen = true;
    getcontext(&th->first);
    th->first.uc_stack.ss_sp = th->stack;
    th->first.uc_stack.ss_size = STACK_BYTES;
    th->first.uc_link = NULL;
    makecontext(&th->first, thread_main, 0);
    setcontext(&th->first);
    abort();
}

/* Chooses who takes the next access: the current thread first, if it can. */
static void give_way(void)
{
    unsigned can[EXPLORE_THREADS_MAX], n = 0, to;
    bool stay = runnable(x.running);

    if (x.thread[x.running].chosen) {
        x.thread[x.running].chosen = false;
        if (stay)
            return;
    }
    if (!x.tracing && x.n_replayed == x.n_choices && seen_before(state_digest()))
        leave(EXECUTION_PRUNED);
    if (stay)
        can[n++] = x.running;
    if (!stay || !x.c->preemptions || x.n_preemptions < x.c->preemptions) {
        for (unsigned t = 0; t < x.c->n_threads; t++) {
            if (t != x.running && runnable(t))
                can[n++] = t;
        }
    }
    if (n == 0) {
        for (unsigned t = 0; t < x.c->n_threads; t++) {
            if (!x.thread[t].ended)
                fail("deadlock: a thread sleeps and nobody will wake it");
        }
        leave(EXECUTION_ENDED);
    }
    to = can[choose(n)];
    if (to == x.running)
        return;
    if (stay)
        x.n_preemptions++;
    if (_setjmp(x.thread[x.running].at) == 0)
        resume(to);
}

/* An access by the current thread begins; others may come first. */
static struct thread *access_begin(void)
{
    struct thread *th;

    give_way();
    th = &x.thread[x.running];
    th->now.clock[x.running]++;
    return th;
}

/* Likewise, but nobody needs to come first. */
static struct thread *access_at_once(void)
{
    struct thread *th = &x.thread[x.running];

    th->now.clock[x.running]++;
    return th;
}

static void note_loader(struct location *l)
{
    if (!(l->loaders >> x.running & 1)) {
        l->loaders |= 1u << x.running;
        if (l->is_counted)
            leave(EXECUTION_RESTART);
    }
}

/* Before a load, which needs others to come first only if one of them writes there. */
static struct thread *load_begin(struct location *l)
{
    note_loader(l);
    return x.at_all || l->writers & ~(1u << x.running) ? access_begin() : access_at_once();
}

/* The running thread stores: have others loaded as if it did not? */
static void note_writer(struct location *l)
{
    unsigned mine = 1u << x.running;

    if (l->writers & mine)
        return;
    l->writers |= mine;
    if (l->loaders & ~mine)
        leave(EXECUTION_RESTART);
}

static void order_matters(struct location *l)
{
    if (l->ordered)
        return;
    l->ordered = true;
    leave(EXECUTION_RESTART);
}

void explore_thread_end(void);
void explore_thread_end(void)
{
    x.thread[x.running].ended = true;
    x.thread[x.running].chosen = false;
    give_way();
    abort(); /* an ended thread is never chosen */
}

/* ---- accesses -------------------------------------------------------------------------------- */

static void site_note(const char *file, int line, const char *kind)
{
    for (size_t i = 0; i < x.n_sites; i++) {
        if (x.site[i].line == line && !strcmp(x.site[i].file, file))
            return;
    }
    assert(x.n_sites < SITES_MAX);
    x.site[x.n_sites++] = (struct explore_site){file, line, kind};
}

static bool weakened(const char *file, int line)
{
    return x.weak_file && x.weak_line == line && !strcmp(x.weak_file, file);
}

static void trace(const char *what, const void *p, uint64_t v, const char *file, int line)
{
    if (x.tracing)
        printf("    thread %u  %-6s %p = %llx  %s:%d\n", x.running, what, p, (unsigned long long)v,
               file, line);
}

static uint64_t plain_load(const void *p, unsigned bytes)
{
    uint64_t v = 0;

    memcpy(&v, p, bytes);
    return v;
}

/* The history begins with what init put there. */
static void location_reset(struct location *l)
{
    l->n = 1;
    memset(&l->store[0], 0, sizeof l->store[0]);
    l->store[0].value = plain_load(l->p, l->bytes);
    memset(l->data_read, 0, sizeof l->data_read);
    memset(l->data_written, 0, sizeof l->data_written);
    memset(l->used, 0, sizeof l->used);
}

/* Indices stay from one execution to the next, so that digests compare. */
static unsigned location_of(const void *p, unsigned bytes)
{
    unsigned i;

    for (i = 0; i < x.n_locations; i++) {
        if (x.location[i].p == p) {
            assert(x.location[i].bytes == bytes);
            return i;
        }
    }
    assert(i < LOCATIONS_MAX);
    x.location[i].p = p;
    x.location[i].bytes = bytes;
    x.location[i].ordered = false;
    x.location[i].loaders = x.location[i].writers = 0;
    x.location[i].is_counted = x.location[i].is_stored = false;
    location_reset(&x.location[i]);
    x.n_locations++;
    return i;
}

/* The access is one to memory that is there, and whoever takes that away must know of it. */
static void use(const struct thread *th, unsigned loc)
{
    struct location *l = &x.location[loc];
    const char *p = l->p;

    l->used[x.running] = th->now.clock[x.running];
    for (unsigned i = 0; i < x.n_regions; i++) {
        const struct region *r = &x.region[i];

        if (!(r->threads >> x.running & 1) || p < r->p || p >= r->p + r->bytes)
            continue;
        if (r->gone)
            fail("memory was used that is unmapped");
        if (th->now.clock[r->mapper] < r->since)
            fail("memory was used before it was known to be mapped");
    }
}

static uint64_t read_from(struct thread *th, unsigned loc, unsigned k, enum explore_order order)
{
    const struct store *s = &x.location[loc].store[k];

    use(th, loc);
    if (k > th->now.at[loc])
        th->now.at[loc] = (uint16_t)k;
    if (!k) /* init's store: nothing comes with it */
        ;
    else if (order == CB_ACQUIRE)
        view_join(&th->now, &s->view);
    else
        view_join(&th->acquired, &s->view);
    th->reads = mix(mix(th->reads, s->value), 1);
    return s->value;
}

static void append(struct thread *th, unsigned loc, uint64_t v, enum explore_order order,
                   const struct view *sequence)
{
    struct location *l = &x.location[loc];
    struct store *s = &l->store[l->n];

    assert(l->n < STORES_MAX);
    x.thread[x.running].chosen = false; /* what it stored may be seen before its next access */
    note_writer(l);
    use(th, loc);
    th->now.at[loc] = (uint16_t)l->n;
    s->writer = x.running;
    s->value = v;
    s->view = order == CB_RELEASE ? th->now : th->released;
    s->view.at[loc] = (uint16_t)l->n;
    if (sequence)
        view_join(&s->view, sequence);
    s->digest = view_digest(mix(v, 3), &s->view);
    l->n++;
    th->reads = mix(th->reads, 2);
}

/* Copies carry data: whatever order its words have, two threads must not touch them at once, one of
 * them writing. This also finds a missing release after reads, which a machine without load
 * buffering can't show as a wrong value. */
static void data_check(const uint16_t *before, const char *what)
{
    for (unsigned t = 0; t < x.c->n_threads; t++) {
        if (before[t] > x.thread[x.running].now.clock[t] && t != x.running)
            fail(what);
    }
}

uint64_t explore_load(const void *p, unsigned bytes, enum explore_order order, const char *file,
                      int line)
{
    struct thread *th;
    unsigned loc, oldest, k;
    uint64_t v;

    if (!x.active)
        return plain_load(p, bytes);
    loc = location_of(p, bytes);
    th = x.newest_only ? access_at_once() : load_begin(&x.location[loc]);
    if (order != CB_RELAXED) {
        site_note(file, line, "acquire");
        if (weakened(file, line))
            order = CB_RELAXED;
    }
    oldest = th->now.at[loc];
    /* Newest first: the common execution is the fresh one. */
    k = x.location[loc].n - 1;
    if (!x.newest_only)
        k -= choose(x.location[loc].n - oldest);
    v = read_from(th, loc, k, order);
    trace(k + 1 == x.location[loc].n ? "load" : "stale", p, v, file, line);
    return v;
}

void explore_store(void *p, unsigned bytes, uint64_t v, enum explore_order order, const char *file,
                   int line)
{
    struct thread *th;
    struct location *l;
    unsigned loc;

    if (!x.active) {
        memcpy(p, &v, bytes);
        return;
    }
    loc = location_of(p, bytes);
    l = &x.location[loc];
    if (!l->is_stored) {
        l->is_stored = true;
        if (l->is_counted)
            leave(EXECUTION_RESTART);
    }
    th = x.at_all || l->ordered ? access_begin() : access_at_once();
    if (l->n > 1 && l->store[l->n - 1].writer != x.running)
        order_matters(l);
    if (order != CB_RELAXED) {
        site_note(file, line, "release");
        if (weakened(file, line))
            order = CB_RELAXED;
    }
    data_check(l->data_read, "data race: overwritten while another reads");
    append(th, loc, v, order, NULL);
    l->data_written[x.running] = th->now.clock[x.running];
    trace("store", p, v, file, line);
}

/* Strong: it fails only on another value, which may be a stale one; it succeeds on the newest
 * only. */
bool explore_cas(void *p, unsigned bytes, void *expected, uint64_t v, const char *file, int line)
{
    struct thread *th;
    struct location *l;
    uint64_t want = plain_load(expected, bytes), got;
    unsigned loc, can[STORES_MAX], n = 0;

    if (!x.active) {
        got = plain_load(p, bytes);
        memcpy(got == want ? p : expected, got == want ? &v : &got, bytes);
        return got == want;
    }
    loc = location_of(p, bytes);
    l = &x.location[loc];
    note_loader(l);
    th = access_begin();
    if (l->n > 1 && l->store[l->n - 1].writer != x.running)
        order_matters(l);
    can[n++] = l->n - 1;
    for (unsigned k = l->n - 1; k-- > th->now.at[loc];) {
        if (l->store[k].value != want)
            can[n++] = k;
    }
    n = can[choose(n)];
    if (n == l->n - 1 && l->store[n].value == want) {
        struct view sequence = l->store[n].view;

        read_from(th, loc, n, CB_RELAXED);
        append(th, loc, v, CB_RELAXED, &sequence);
        trace("cas", p, v, file, line);
        return true;
    }
    got = read_from(th, loc, n, CB_RELAXED);
    memcpy(expected, &got, bytes);
    trace("nocas", p, got, file, line);
    return false;
}

/* To the newest value, whatever of it the thread has seen. */
void explore_add32(void *p, uint32_t n, enum explore_order order, const char *file, int line)
{
    struct thread *th;
    struct location *l;
    struct view sequence;
    unsigned loc;

    if (!x.active) {
        n += (uint32_t)plain_load(p, 4);
        memcpy(p, &n, 4);
        return;
    }
    loc = location_of(p, 4);
    l = &x.location[loc];
    if (!x.at_all && !(l->loaders & ~(1u << x.running)) &&
        !l->is_stored) { /* it tells nobody anything */
        l->is_counted = true;
        th = access_at_once();
        append(th, loc, (uint32_t)l->store[l->n - 1].value + n, CB_RELAXED, NULL);
        trace("count", p, l->store[l->n - 1].value, file, line);
        return;
    }
    th = access_begin();
    if (l->n > 1 && l->store[l->n - 1].writer != x.running)
        order_matters(l);
    if (order != CB_RELAXED) {
        site_note(file, line, "release");
        if (weakened(file, line))
            order = CB_RELAXED;
    }
    sequence = l->store[l->n - 1].view;
    n += (uint32_t)read_from(th, loc, l->n - 1, CB_RELAXED);
    append(th, loc, n, order, &sequence);
    trace("add", p, n, file, line);
}

void explore_fence(const char *file, int line)
{
    struct thread *th;

    if (!x.active)
        return;
    th = access_begin();
    site_note(file, line, "fence");
    th->reads = mix(th->reads, 4);
    if (weakened(file, line))
        return;
    view_join(&th->now, &th->acquired);
    view_join(&th->now, &x.global);
    x.global = th->now;
    th->released = th->now;
    memset(&th->acquired, 0, sizeof th->acquired);
    trace("fence", NULL, 0, file, line);
}

void explore_copy_in(void *dst, const void *src, size_t bytes, const char *file, int line)
{
    for (size_t i = 0; i < bytes; i += 4) {
        const char *p = (const char *)src + i;
        struct thread *th;
        struct location *l;
        unsigned loc;
        uint32_t v;

        if (!x.active) {
            memcpy((char *)dst + i, p, 4);
            continue;
        }
        th = access_at_once();
        loc = location_of(p, 4);
        l = &x.location[loc];
        data_check(l->data_written, "data race: read while another writes");
        v = (uint32_t)read_from(th, loc, l->n - 1, CB_RELAXED);
        l->data_read[x.running] = th->now.clock[x.running];
        memcpy((char *)dst + i, &v, 4);
        trace("data", p, v, file, line);
    }
}

void explore_copy_out(void *dst, const void *src, size_t bytes, const char *file, int line)
{
    for (size_t i = 0; i < bytes; i += 4) {
        char *p = (char *)dst + i;
        struct thread *th;
        struct location *l;
        unsigned loc;

        if (!x.active) {
            memcpy(p, (const char *)src + i, 4);
            continue;
        }
        th = access_at_once();
        loc = location_of(p, 4);
        l = &x.location[loc];
        data_check(l->data_written, "data race: two writers");
        data_check(l->data_read, "data race: overwritten while another reads");
        append(th, loc, plain_load((const char *)src + i, 4), CB_RELAXED, NULL);
        l->data_written[x.running] = th->now.clock[x.running];
        trace("put", p, plain_load((const char *)src + i, 4), file, line);
    }
}

/* ---- inside a case --------------------------------------------------------------------------- */

void explore_claim(bool holds, const char *text)
{
    if (holds)
        return;
    if (!x.active) {
        x.result->failed = true;
        snprintf(x.result->why, sizeof x.result->why, "%s", text);
        return;
    }
    fail(text);
}

void explore_futex_wait(const void *word, uint32_t value)
{
    struct thread *th = &x.thread[x.running];
    unsigned loc = location_of(word, 4);

    note_loader(&x.location[loc]);
    order_matters(&x.location[loc]);
    give_way();
    /* The kernel compares on behalf of this thread, which can't read older values afterwards. */
    if (read_from(th, loc, x.location[loc].n - 1, CB_RELAXED) != value)
        return;
    trace("sleep", word, value, "", 0);
    th->futex = word;
    give_way();
}

void explore_futex_wake(const void *word)
{
    if (!x.active)
        return;
    give_way();
    x.thread[x.running].reads = mix(x.thread[x.running].reads, 6);
    for (unsigned t = 0; t < x.c->n_threads; t++) {
        if (x.thread[t].futex == word)
            x.thread[t].futex = NULL;
    }
    trace("wake", word, 0, "", 0);
}

void explore_kernel(void)
{
    if (!x.active)
        return;
    give_way();
    x.thread[x.running].reads = mix(x.thread[x.running].reads, 9);
}

unsigned explore_choose(unsigned n)
{
    unsigned k = choose(n);

    x.thread[x.running].reads = mix(x.thread[x.running].reads, 16 + k);
    return k;
}

unsigned explore_self(void)
{
    return x.running;
}

static struct lock *lock_of(const void *p)
{
    unsigned i;

    for (i = 0; i < x.n_locks; i++) {
        if (x.lock[i].p == p)
            return &x.lock[i];
    }
    assert(i < LOCKS_MAX);
    x.lock[x.n_locks++] = (struct lock){.p = p};
    return &x.lock[i];
}

void explore_lock(const void *mutex)
{
    struct thread *th = &x.thread[x.running];
    struct lock *l;

    if (!x.active)
        return;
    l = lock_of(mutex);
    th->mutex = l;
    give_way();
    th->mutex = NULL;
    l->held = true;
    l->holder = x.running;
    view_join(&th->now, &l->view);
    th->reads = mix(th->reads, (uint64_t)++l->n_holds << 8 | 10);
    trace("lock", mutex, l->n_holds, "", 0);
}

/* Nobody needs to come first: who could go on before it can after it. */
void explore_unlock(const void *mutex)
{
    struct thread *th = &x.thread[x.running];
    struct lock *l;

    if (!x.active)
        return;
    l = lock_of(mutex);
    explore_claim(l->held && l->holder == x.running, "a lock is let go by who does not hold it");
    l->held = false;
    th->now.clock[x.running]++;
    l->view = th->now;
    trace("unlock", mutex, l->n_holds, "", 0);
}

void explore_map(const void *p, size_t bytes, unsigned threads)
{
    struct region *r = &x.region[x.n_regions];

    assert(x.n_regions < REGIONS_MAX);
    *r = (struct region){.p = p, .bytes = bytes, .threads = threads};
    if (x.active) {
        r->mapper = x.running;
        r->since = ++x.thread[x.running].now.clock[x.running];
        x.thread[x.running].reads = mix(x.thread[x.running].reads, 8);
    }
    x.n_regions++;
    trace("map", p, bytes, "", 0);
}

void explore_unmap(const void *p)
{
    struct thread *th = &x.thread[x.running];

    if (!x.active)
        return;
    give_way();
    th->reads = mix(th->reads, 11);
    trace("unmap", p, 0, "", 0);
    for (unsigned i = 0; i < x.n_regions; i++) {
        struct region *r = &x.region[i];

        if (r->p != p || r->gone)
            continue;
        for (unsigned k = 0; k < x.n_locations; k++) {
            const struct location *l = &x.location[k];
            const char *at = l->p;

            for (unsigned t = 0; at >= r->p && at < r->p + r->bytes && t < x.c->n_threads; t++) {
                if (r->threads >> t & 1 && t != x.running && l->used[t] > th->now.clock[t])
                    fail("memory was unmapped that another thread may still use");
            }
        }
        r->gone = true;
    }
}

void explore_until(bool (*ready)(void *), void *arg)
{
    struct thread *th = &x.thread[x.running];

    th->ready = ready;
    th->ready_arg = arg;
    give_way();
    th->ready = NULL;
    th->reads = mix(th->reads, 7);
}

uint64_t explore_newest(const void *p, unsigned bytes)
{
    for (unsigned i = 0; i < x.n_locations; i++) {
        if (x.location[i].p == p)
            return x.location[i].store[x.location[i].n - 1].value;
    }
    return plain_load(p, bytes);
}

void explore_adopt(void)
{
    for (unsigned i = 0; i < x.n_locations; i++) {
        struct location *l = &x.location[i];

        memcpy((void *)(uintptr_t)l->p, &l->store[l->n - 1].value, l->bytes);
    }
}

void explore_newest_only(bool on)
{
    x.newest_only = on;
}

void explore_private(const void *p, size_t bytes)
{
    assert(x.n_private < PRIVATE_MAX);
    x.private[x.n_private].p = p;
    x.private[x.n_private++].bytes = bytes;
}

/* ---- running --------------------------------------------------------------------------------- */

static int execute(void)
{
    volatile int how;

    x.n_replayed = 0;
    x.n_preemptions = 0;
    x.n_private = x.n_locks = x.n_regions = 0;
    x.newest_only = false;
    memset(&x.global, 0, sizeof x.global);
    for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++) {
        struct thread *th = &x.thread[t];

        memset(&th->now, 0, sizeof th->now);
        memset(&th->acquired, 0, sizeof th->acquired);
        memset(&th->released, 0, sizeof th->released);
        th->reads = 0;
        th->ended = t >= x.c->n_threads;
        th->futex = NULL;
        th->mutex = NULL;
        th->ready = NULL;
        th->started = th->chosen = false;
    }
    x.c->init();
    for (unsigned i = 0; i < x.n_locations; i++)
        location_reset(&x.location[i]);
    x.result->n_executions++;
    how = _setjmp(x.main);
    if (how == 0) {
        x.active = true;
        resume(choose(x.c->n_threads));
    }
    if (how == EXECUTION_ENDED && x.c->check)
        x.c->check();
    return how;
}

void explore_run(const struct explore_case *c, struct explore_result *result)
{
    memset(result, 0, sizeof *result);
    x.c = c;
    x.result = result;
    x.n_choices = 0;
    x.n_locations = 0;
    x.n_seen = 0;
    if (x.seen)
        memset(x.seen, 0, x.seen_capacity * sizeof *x.seen);
    for (unsigned t = 0; t < EXPLORE_THREADS_MAX; t++) {
        if (!x.thread[t].stack)
            x.thread[t].stack = malloc(STACK_BYTES);
        assert(x.thread[t].stack);
    }
    for (;;) {
        if (execute() == EXECUTION_RESTART) {
            memset(x.seen, 0, x.seen_capacity * sizeof *x.seen);
            x.n_seen = 0;
            x.n_choices = 0;
        } else if (result->failed || !advance()) {
            break;
        }
    }
    result->n_states = x.n_seen;
    if (result->failed && x.trace) {
        x.tracing = true;
        execute();
        x.tracing = false;
    }
}

void explore_weaken(const char *file, int line)
{
    x.weak_file = file;
    x.weak_line = line;
}

size_t explore_sites(const struct explore_site **sitesp)
{
    *sitesp = x.site;
    return x.n_sites;
}

void explore_forget(void)
{
    x.n_sites = 0;
}

void explore_give_way_at_all(bool on)
{
    x.at_all = on;
}

void explore_trace(bool on)
{
    x.trace = on;
}
