/* Clients and daemons that die behind the n-th store to a lane, for every n of a life with everything
 * in it: the daemon in a first life and while requests come back to it, a client in its life and while
 * its requests go on elsewhere. Each time a client beside them, or the one whose daemon it was, gets
 * what it gets alone, and daemon and client hold what they held before.
 *
 * CB_CRASH_ALL drives all n (`make soak-crashes`); by default each run drives some, which change. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/crash/scene.h"
#include "tests/system/crowd.h"

TestSuite(crashes, .timeout = 3600);

#define DAEMON SETTINGS("--model", "null", "--null_step_us", "500", "--null_context", SCENE_CONTEXT)

enum { N_DRIVEN = 25 }; /* of each kind, or a few more, unless all are */

/* Between the test and its player, the client that lives. */
struct stage {
    struct system s;
    struct crowd c;
    struct acts {
        _Atomic int kills;    /* the daemon that it kills midway; 0: none */
        _Atomic uint32_t end; /* no more scenes */
    } * acts;
    uint32_t n_scenes;
};

static void kill_midway(void *arg)
{
    struct acts *acts = arg;
    int pid = atomic_exchange(&acts->kills, 0);
    if (pid)
        kill(pid, SIGKILL);
}

/* Plays a scene each time it is told to, on one handle. */
static void player(struct crowd *c, uint32_t i, void *arg)
{
    struct acts *acts = arg;
    struct scene known;
    struct scene_play play = {.known = &known,
                              .is_resumable = true,
                              .midway = kill_midway,
                              .arg = acts,
                              .hang_ms = HANG_MS};
    struct scene_held first, held;
    struct cb_options options;
    char why[256];
    (void)i;
    cb_options_init(&options);
    options.resume = 1;
    options.resume_max = 1u << 30;
    options.reconnect_ms = 120000;
    struct cb_handle *h = crowd_open(c, &options);
    if (!scene_learn(&known, h, why))
        crowd_fail(c, "it learns nothing: %s", why);
    scene_held(&first);
    for (uint32_t n = 1;; n++) {
        crowd_there(c);
        crowd_hold(c, n);
        if (atomic_load(&acts->end))
            break;
        if (!scene_play(h, &play, why))
            crowd_fail(c, "scene %u: %s", n, why);
        scene_held(&held);
        member_expect(c, held.n_fds == first.n_fds && held.mapped_bytes == first.mapped_bytes,
                      "scene %u: it has %llu descriptors and %llu bytes, not %llu and %llu", n,
                      (unsigned long long)held.n_fds, (unsigned long long)held.mapped_bytes,
                      (unsigned long long)first.n_fds, (unsigned long long)first.mapped_bytes);
    }
    cb_close(h);
}

static void stage_open(struct stage *st, const char *program)
{
    memset(st, 0, sizeof *st);
    system_init(&st->s);
    st->s.program = program;
    st->acts =
        mmap(NULL, sizeof *st->acts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(st->acts != MAP_FAILED);
    system_start(&st->s, DAEMON);
    crowd_init(&st->c, &st->s);
    crowd_add(&st->c, player, st->acts);
    crowd_await(&st->c, 1);
    system_note_again(&st->s);
}

static void stage_close(struct stage *st)
{
    atomic_store(&st->acts->end, 1);
    atomic_store(&st->c.shared->go, st->n_scenes + 1);
    crowd_join(&st->c);
    crowd_fini(&st->c);
    munmap(st->acts, sizeof *st->acts);
    system_fini(&st->s);
}

static void scene_begin(struct stage *st)
{
    atomic_store(&st->c.shared->go, ++st->n_scenes);
}

static bool scene_is_over(const struct stage *st)
{
    return atomic_load(&st->c.shared->n_there) > st->n_scenes;
}

/* Then another one: who was through before a daemon died has not looked since. */
static void scene_end(struct stage *st)
{
    crowd_await(&st->c, st->n_scenes + 1);
    scene_begin(st);
    crowd_await(&st->c, st->n_scenes + 1);
    system_settle(&st->s);
}

/* Starts the next daemon, which dies at its n-th store, perhaps of STATUS before it serves; 0: lives. */
static void start_armed(struct stage *st, uint32_t n)
{
    char word[16];
    snprintf(word, sizeof word, "%u", n);
    setenv("CB_CRASH_AT", word, 1);
    system_spawn_as(&st->s, geteuid(), DAEMON);
    unsetenv("CB_CRASH_AT");
    cr_assert(system_is_ready(&st->s) || n > 0);
}

/* Whether the daemon died before the scene was over. Another one has taken its place, which lives. */
static bool died(struct stage *st)
{
    uint64_t until = now_ms() + HANG_MS;
    int status;
    for (;; nap()) {
        if (waitpid(st->s.pid, &status, WNOHANG) == st->s.pid) {
            cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "it ended with %x",
                      status);
            start_armed(st, 0);
            return true;
        }
        if (scene_is_over(st)) { /* it would die of what comes next */
            system_signal(&st->s, SIGKILL);
            (void)system_wait(&st->s);
            start_armed(st, 0);
            return false;
        }
        cr_assert_eq(atomic_load(&st->c.shared->n_failed), 0, "%s", st->c.shared->why);
        cr_assert_lt(now_ms(), until, "neither the daemon nor the scene ends");
    }
}

/* Drives `at`, which says whether there was an n-th store, through all n, or through some. How many
 * stores a scene takes depends on what came in one look: where all are driven, one scene with fewer is
 * not the end. */
static void drive(struct stage *st, const char *what, bool (*at)(struct stage *st, uint32_t n),
                  uint32_t n_usual)
{
    bool is_all = getenv("CB_CRASH_ALL");
    uint32_t stride = is_all ? 1 : 1 + n_usual / N_DRIVEN, n_deaths = 0, n_without = 0;
    uint32_t n = 1 + (is_all ? 0 : (uint32_t)now_ms() % stride);
    for (; n_without < (is_all ? 30 : 1); n += stride) {
        bool was = at(st, n);
        n_deaths += was;
        n_without = was ? 0 : n_without + 1;
    }
    fprintf(stderr, "%s: %u deaths, at every %u of %u stores or fewer\n", what, n_deaths, stride,
            n - 1);
    cr_expect_gt(n_deaths, n_usual / stride / 2, "there is hardly a store: %u", n);
}

/* ---- a daemon dies ---------------------------------------------------------------------------- */

/* In its first life, from the hello on. */
static bool daemon_at(struct stage *st, uint32_t n)
{
    system_signal(&st->s, SIGKILL);
    cr_assert_eq(system_wait(&st->s), -SIGKILL);
    start_armed(st, n);
    scene_begin(st);
    bool is_dead = died(st);
    scene_end(st);
    return is_dead;
}

/* The daemon before it dies midway, and its requests come. */
static bool next_daemon_at(struct stage *st, uint32_t n)
{
    atomic_store(&st->acts->kills, st->s.pid);
    scene_begin(st);
    cr_assert_eq(system_wait(&st->s), -SIGKILL);
    start_armed(st, n);
    bool is_dead = died(st);
    scene_end(st);
    return is_dead;
}

Test(crashes, of_the_daemon_at_every_store)
{
    static struct stage st;
    stage_open(&st, "tests/cbd_crash");
    drive(&st, "a daemon", daemon_at, 1000);
    stage_close(&st);
}

Test(crashes, of_the_next_daemon_at_every_store_while_requests_come_back)
{
    static struct stage st;
    stage_open(&st, "tests/cbd_crash");
    drive(&st, "a daemon with requests that come back", next_daemon_at, 1000);
    stage_close(&st);
}

/* ---- a client dies ---------------------------------------------------------------------------- */

static bool victim_died(struct running *r)
{
    struct output o = system_run_end(r);
    cr_assert(o.status == -SIGKILL || o.status == 0, "it ended with %d: %s", o.status, o.err);
    output_free(&o);
    return o.status != 0;
}

static bool client_at(struct stage *st, uint32_t n)
{
    char word[16];
    snprintf(word, sizeof word, "%u", n);
    struct running r = system_run_begin(&st->s, NULL, "tests/crash_client",
                                        SETTINGS(st->s.dir, st->s.instance, word));
    scene_begin(st);
    bool is_dead = victim_died(&r);
    scene_end(st);
    return is_dead;
}

/* It kills the daemon midway, and dies while its requests go on at the next one. */
static bool resuming_client_at(struct stage *st, uint32_t n)
{
    char word[16], pid[16];
    snprintf(word, sizeof word, "%u", n);
    snprintf(pid, sizeof pid, "%d", st->s.pid);
    struct running r = system_run_begin(&st->s, NULL, "tests/crash_client",
                                        SETTINGS(st->s.dir, st->s.instance, word, pid));
    scene_begin(st);
    cr_assert_eq(system_wait(&st->s), -SIGKILL);
    start_armed(st, 0);
    bool is_dead = victim_died(&r);
    scene_end(st);
    return is_dead;
}

Test(crashes, of_a_client_at_every_store)
{
    static struct stage st;
    stage_open(&st, "cbd");
    drive(&st, "a client", client_at, 400);
    stage_close(&st);
}

Test(crashes, of_a_client_at_every_store_while_it_resumes)
{
    static struct stage st;
    stage_open(&st, "cbd");
    drive(&st, "a client that resumes", resuming_client_at, 400);
    stage_close(&st);
}
