/* Sixteen clients under load that are killed, stand still, come and go at random, over a daemon that
 * stands still, dies and is replaced: nobody hangs, every stream is what it is alone, and again and
 * again, with everybody gone, daemon and clients hold what they held at the start.
 *
 * CB_CLIENT_KILLS says how many clients are killed (`make soak-clients`: 10,000), and that some stand
 * still for up to a minute; CB_SOAK_SECONDS says how long everything happens together (`make soak`:
 * hours). By default they are short forms. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/crash/scene.h"
#include "tests/system/storm.h"
#include "tests/system/stream.h"

TestSuite(unrest, .timeout = 200000);

enum {
    N_CLIENTS = 16,
    N_FEW = 2,
    N_SIDE = 3,
    N_WHOLE = 100,
    KILL_HANG_MS = 300000,
    ERA_MS = 10000,
    QUIET_MS = 3000
};

/* With the net at ten seconds a wake that is lost is seen: it counts, and so much time is lost. */
#define DAEMON SETTINGS("--model", "null", "--null_step_us", "200", "--net_ms", "10000")

struct known {
    struct streams streams;
    uint32_t whole[N_WHOLE]; /* of what is asked beside them, and cancelled */
    bool daemon_dies;
    /* Shared: who is in the midst of a handshake, for which a daemon has two seconds of patience. */
    _Atomic uint32_t *is_greeting; /* [N_CLIENTS] */
};

/* ---- clients ---------------------------------------------------------------------------------- */

static struct cb_request side_request(void)
{
    static const uint32_t prompt[] = {9, 8, 7};
    struct cb_request r;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = N_WHOLE;
    r.flags = CB_IGNORE_EOS | CB_RESUMABLE | CB_FINAL_ONLY;
    return r;
}

/* Some requests on a handle of their own; of each three one is cancelled. Returns how many were sent. */
static uint32_t side_begin(struct crowd *c, struct cb_handle *h, uint64_t ids[N_SIDE],
                           uint64_t *random)
{
    struct cb_request r = side_request();
    uint32_t n = 0;
    while (n < N_SIDE) {
        int status = cb_submit(h, &r, &ids[n]);
        if (status == CB_BUSY)
            break; /* no daemon is there */
        member_expect(c, status == 0, "submit: %s", cb_message());
        if (draw(random, 3) == 0)
            cb_cancel(h, ids[n]);
        n++;
    }
    return n;
}

static void side_end(struct crowd *c, const struct known *known, struct cb_handle *h,
                     const uint64_t ids[N_SIDE], uint32_t n, uint64_t *random)
{
    for (uint32_t i = 0; i < n; i++) {
        struct cb_event e;
        if (draw(random, 4) == 0)
            cb_cancel(h, ids[i]);
        int r = cb_wait(h, ids[i], &e, KILL_HANG_MS);
        member_expect(c, r == 1 && e.type == CB_EVENT_END, "%d: %s", r, cb_message());
        member_expect(c,
                      e.end == CB_END_CANCELLED || (e.end == CB_END_LENGTH && e.n_ids == N_WHOLE),
                      "end %u, status %d, %zu tokens", e.end, e.status, e.n_ids);
        member_expect(c, e.n_ids <= N_WHOLE, "%zu tokens", e.n_ids);
        for (size_t k = 0; k < e.n_ids; k++)
            member_expect(c, e.ids[k] == known->whole[k], "others at %zu", k);
        cb_release(h, ids[i]);
        crowd_move(c);
    }
}

/* Where daemons die, one may do so while it is greeted. */
static struct cb_handle *open_one(struct crowd *c, const struct known *known, uint32_t i,
                                  enum stream_way way)
{
    uint64_t until = now_ms() + KILL_HANG_MS;
    struct cb_options options;
    struct cb_handle *h;
    int r;
    stream_options(&options, way);
    options.wait_ms = known->daemon_dies ? KILL_HANG_MS : 0;
    atomic_store(&known->is_greeting[i], 1);
    do /* the daemon may stand still, too */
        r = system_try_open(c->system, &options, &h);
    while ((r == CB_TIMEOUT || (r == CB_LOST && known->daemon_dies)) && now_ms() < until);
    atomic_store(&known->is_greeting[i], 0);
    member_expect(c, r == 0, "cb_open: %s", cb_message());
    return h;
}

static void live(struct crowd *c, const struct known *known, uint32_t i, uint64_t *random)
{
    enum stream_way way = (enum stream_way)(i % STREAM_WAYS);
    struct cb_info info;
    uint64_t ids[N_SIDE];
    struct cb_handle *h = open_one(c, known, i, way), *side = open_one(c, known, i, STREAM_WAIT);
    for (uint32_t k = draw(random, 4); k > 0; k--) {
        uint32_t n = side_begin(c, side, ids, random);
        stream_run(c, &known->streams, h, draw(random, STREAM_KINDS), way, KILL_HANG_MS);
        side_end(c, known, side, ids, n, random);
    }
    if (draw(random, 2)) /* closed in the middle */
        (void)side_begin(c, side, ids, random);
    cb_info(h, &info);
    member_expect(c, info.wake_missed == 0, "%llu wakes were missed",
                  (unsigned long long)info.wake_missed);
    cb_close(side);
    cb_close(h);
}

static void client(struct crowd *c, uint32_t i, void *arg)
{
    uint64_t random = (uint64_t)getpid() << 8 | i;
    struct scene_held before, held;
    scene_held(&before);
    while (atomic_load(&c->shared->go) == 0) {
        live(c, arg, i, &random);
        scene_held(&held);
        member_expect(c, memcmp(&held, &before, sizeof held) == 0,
                      "%llu descriptors and %llu bytes are left, there were %llu and %llu",
                      (unsigned long long)held.n_fds, (unsigned long long)held.mapped_bytes,
                      (unsigned long long)before.n_fds, (unsigned long long)before.mapped_bytes);
    }
}

/* ---- what befalls them ------------------------------------------------------------------------ */

struct unrest {
    /* Of a thousand turns, a few milliseconds each. */
    uint32_t kill_client, stop_client, stop_daemon, kill_daemon, upgrade;
    uint32_t stop_ms; /* the longest that a client stands still */
    /* Every other era is quiet: few clients, whom nothing befalls. Elsewhere something or other always
     * comes, and ends the sleep that a wake was lost for. */
    bool has_quiet;
    uint32_t n_kills; /* it ends when so many clients were killed, ... */
    uint64_t seconds; /* ... or after so long, if this is not 0 */
};

struct riot {
    const struct unrest *un;
    struct known *known;
    struct system s;
    struct crowd c;
    uint64_t random, until_ms[N_CLIENTS]; /* when who stands still goes on; 0: goes */
    uint32_t n;                           /* clients */
    bool has_other_name; /* the daemon's STATUS, as every other one's that takes over */
    uint32_t n_client_kills, n_client_stops, n_daemon_stops, n_daemon_kills, n_upgrades, n_eras;
};

static void expect_sound(const struct riot *k)
{
    cr_assert_eq(atomic_load(&k->c.shared->n_failed), 0, "%s", k->c.shared->why);
    cr_assert_eq(system_counter(&k->s, "lane_broken"), 0);
    cr_assert_eq(system_counter(&k->s, "wake_missed"), 0);
    cr_assert_eq(system_counter(&k->s, "requests_failed"), 0);
}

static void go_on(struct riot *k, uint32_t i)
{
    if (k->until_ms[i])
        crowd_signal(&k->c, i, SIGCONT);
    k->until_ms[i] = 0;
}

static void upgrade(struct riot *k)
{
    expect_sound(k);
    system_upgrade(&k->s, SETTINGS("-i", k->s.instance, "upgrade", "--json"));
    k->has_other_name = !k->has_other_name;
    k->n_upgrades++;
}

static void turn(struct riot *k)
{
    const struct unrest *un = k->un;
    uint32_t what = draw(&k->random, 1000), i = draw(&k->random, k->n);
    if (what < un->kill_client) {
        crowd_signal(&k->c, i, SIGKILL);
        atomic_store(&k->known->is_greeting[i], 0);
        k->until_ms[i] = 0;
        crowd_again(&k->c, i, client, k->known);
        k->n_client_kills++;
        return;
    }
    what -= un->kill_client;
    if (what < un->stop_client) {
        /* Mostly short; now and then long. */
        uint32_t ms = 1 + draw(&k->random, draw(&k->random, 32) ? 50 : un->stop_ms);
        if (k->until_ms[i])
            return;
        crowd_signal(&k->c, i, SIGSTOP);
        nap(); /* by now it stands */
        k->until_ms[i] = now_ms() + (atomic_load(&k->known->is_greeting[i]) && ms > 50 ? 50 : ms);
        k->n_client_stops++;
        return;
    }
    what -= un->stop_client;
    if (what < un->stop_daemon) {
        system_signal(&k->s, SIGSTOP);
        for (uint32_t ms = draw(&k->random, 200); ms > 0; ms--)
            nap();
        system_signal(&k->s, SIGCONT);
        k->n_daemon_stops++;
        return;
    }
    what -= un->stop_daemon;
    if (what < un->kill_daemon) {
        expect_sound(k);
        system_signal(&k->s, SIGKILL);
        cr_assert_eq(system_wait(&k->s), -SIGKILL);
        system_spawn_as(&k->s, geteuid(), DAEMON);
        cr_assert(system_is_ready(&k->s));
        k->has_other_name = false;
        k->n_daemon_kills++;
        return;
    }
    what -= un->kill_daemon;
    if (what < un->upgrade)
        upgrade(k);
}

static bool is_enough(const struct riot *k, uint64_t end_ms)
{
    return k->un->seconds ? now_ms() >= end_ms : k->n_client_kills >= k->un->n_kills;
}

/* From nobody to nobody: after it all is as it was. */
static void era(struct riot *k, uint64_t end_ms)
{
    bool is_quiet = k->un->has_quiet && k->n_eras % 2;
    uint64_t era_end_ms = now_ms() + (is_quiet ? QUIET_MS : ERA_MS);
    k->n = is_quiet ? N_FEW : N_CLIENTS;
    crowd_init(&k->c, &k->s);
    for (uint32_t i = 0; i < k->n; i++)
        crowd_add(&k->c, client, k->known);
    while (now_ms() < era_end_ms && !is_enough(k, end_ms)) {
        for (uint32_t i = 0; i < k->n; i++)
            if (k->until_ms[i] && now_ms() >= k->until_ms[i])
                go_on(k, i);
        if (!is_quiet)
            turn(k);
        cr_assert_eq(atomic_load(&k->c.shared->n_failed), 0, "%s", k->c.shared->why);
        nap();
    }
    for (uint32_t i = 0; i < k->n; i++)
        go_on(k, i);
    atomic_store(&k->c.shared->go, 1);
    crowd_join(&k->c);
    if (k->has_other_name) /* figures are told by the plain one */
        upgrade(k);
    expect_sound(k);
    crowd_fini(&k->c);
    system_settle(&k->s);
    k->n_eras++;
}

static void learn(struct riot *k)
{
    struct cb_request r = side_request();
    struct cb_options options;
    struct cb_event e;
    uint64_t id;
    stream_options(&options, STREAM_WAIT);
    struct cb_handle *h = system_open(&k->s, &options);
    streams_learn(&k->known->streams, h);
    cr_assert_eq(cb_submit(h, &r, &id), 0);
    cr_assert_eq(cb_wait(h, id, &e, HANG_MS), 1);
    cr_assert_eq(e.n_ids, N_WHOLE);
    memcpy(k->known->whole, e.ids, sizeof k->known->whole);
    cb_close(h);
}

static void run(const struct unrest *un)
{
    static struct known known;
    static struct riot k;
    known.is_greeting = mmap(NULL, N_CLIENTS * sizeof *known.is_greeting, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(known.is_greeting != MAP_FAILED);
    k = (struct riot){.un = un, .known = &known, .random = (uint64_t)getpid()};
    system_init(&k.s);
    system_start(&k.s, DAEMON);
    learn(&k);
    known.daemon_dies = un->kill_daemon || un->upgrade;
    uint64_t end_ms = now_ms() + un->seconds * 1000;
    while (!is_enough(&k, end_ms)) {
        era(&k, end_ms);
        if (k.n_eras % 60 == 0)
            fprintf(stderr, "%u eras, %u clients and %u daemons killed\n", k.n_eras,
                    k.n_client_kills, k.n_daemon_kills);
    }
    fprintf(stderr,
            "%u eras: %u clients killed, %u stopped; daemons: %u killed, %u stopped, %u replaced\n",
            k.n_eras, k.n_client_kills, k.n_client_stops, k.n_daemon_kills, k.n_daemon_stops,
            k.n_upgrades);
    system_fini(&k.s);
    munmap(known.is_greeting, N_CLIENTS * sizeof *known.is_greeting);
}

static uint32_t wanted(const char *name, uint32_t usual)
{
    const char *word = getenv(name);
    return word ? (uint32_t)strtoul(word, NULL, 10) : usual;
}

Test(unrest, clients_are_killed)
{
    const struct unrest un = {.kill_client = 500, .n_kills = wanted("CB_CLIENT_KILLS", 300)};
    run(&un);
}

Test(unrest, clients_and_the_daemon_stand_still)
{
    const struct unrest un = {
        .stop_client = 300, .stop_daemon = 5, .stop_ms = 2000, .seconds = IS_SANITIZED ? 5 : 10};
    run(&un);
}

Test(unrest, everything_at_random)
{
    const struct unrest un = {.kill_client = 60,
                              .stop_client = 60,
                              .stop_daemon = 2,
                              .kill_daemon = 3,
                              .upgrade = 1,
                              .stop_ms = 3000,
                              .has_quiet = true,
                              .seconds = wanted("CB_SOAK_SECONDS", IS_SANITIZED ? 30 : 120)};
    run(&un);
}
