/* bench_upgrade CBCTL N P: how long N requests with a prompt of P random ids wait for a token while
 * `CBCTL upgrade` replaces their daemon (CBD_RUNTIME_DIR). They decode, and the upgrade begins when
 * each has some tokens; the new daemon loads beside the old one, then computes anew what they have.
 * CSV without a head, milliseconds between a request's tokens:
 *
 *   N,P,median before,longest while it loads,longest of all,first token of N such prompts afterwards
 *
 * The last is what one computation of the prompts takes: the seam is that, and the way to it. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tests/bench/measure.h"

extern char **environ;

enum { N_MAX = 64, N_NEW = 4000, N_BEFORE = 40, N_BEHIND = 40, FIRST_ID = 10, LAST_ID = 40000 };

struct stream {
    uint64_t id;
    double last, longest; /* when its newest token came; the longest gap since */
    uint32_t n_behind;    /* tokens since the new daemon serves */
};

struct bench {
    struct cb_handle *h;
    uint32_t n, n_prompt, *prompt;
    struct stream streams[N_MAX];
};

static int fail(const char *what)
{
    fprintf(stderr, "bench_upgrade: %s\n", what);
    return 1;
}

static int submit_all(struct bench *b, uint32_t n_new)
{
    char salt[48]; /* none finds another's prompt in the cache */

    for (uint32_t i = 0; i < b->n; i++) {
        struct cb_request r;
        snprintf(salt, sizeof salt, "upgrade %ld %u %u", (long)getpid(), n_new, i);
        for (uint32_t k = 0; k < b->n_prompt; k++)
            b->prompt[k] = FIRST_ID + (uint32_t)random() % (LAST_ID - FIRST_ID);
        cb_request_init(&r);
        r.ids = b->prompt;
        r.n_ids = b->n_prompt;
        r.max_new_tokens = n_new;
        r.flags = CB_IGNORE_EOS | CB_RESUMABLE;
        r.cache_salt = salt;
        r.user = i;
        b->streams[i] = (struct stream){.id = 0};
        if (cb_submit(b->h, &r, &b->streams[i].id))
            return fail(cb_message());
    }
    return 0;
}

/* The next tokens of anybody; of several in one event, those behind the first came at once. */
static int next(struct bench *b, struct cb_event *e, double *gap)
{
    char words[256];
    int r;

    do
        r = cb_wait(b->h, 0, e, 100);
    while (r == CB_TIMEOUT);
    if (r < 0)
        return fail(cb_message());
    if (e->status || e->type != CB_EVENT_TOKENS)
        return fail(e->status ? cb_explain(e->status, e->detail, words, sizeof words) : "an end");
    struct stream *s = &b->streams[e->user];
    double now = bench_now();
    *gap = s->last > 0 ? now - s->last : 0;
    s->last = now;
    if (*gap > s->longest)
        s->longest = *gap;
    return 0;
}

static double longest(struct bench *b)
{
    double most = 0;

    for (uint32_t i = 0; i < b->n; i++) {
        if (b->streams[i].longest > most)
            most = b->streams[i].longest;
        b->streams[i].longest = 0;
    }
    return most;
}

/* Seconds until all have their first token. */
static int first_tokens(struct bench *b, double *seconds)
{
    double begun = bench_now(), gap;
    struct cb_event e;
    uint32_t n = 0;

    if (submit_all(b, N_NEW - 1))
        return 1;
    while (n < b->n) {
        if (next(b, &e, &gap))
            return 1;
        n += gap == 0;
    }
    *seconds = bench_now() - begun;
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static double before[N_MAX * N_BEFORE];
    char *words[] = {argc > 1 ? argv[1] : NULL, "upgrade", "--json", NULL};
    posix_spawn_file_actions_t actions;
    struct cb_options o;
    struct cb_info info;
    struct cb_event e;
    double gap, loading = 0, all, prefill;
    size_t n_before = 0;
    uint32_t n_done = 0;
    int status;
    pid_t pid;

    b.n = argc == 4 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    b.n_prompt = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    b.prompt = malloc(b.n_prompt * sizeof *b.prompt + 1);
    if (!b.n || b.n > N_MAX || !b.n_prompt || !b.prompt)
        return fail("usage: bench_upgrade CBCTL N P");
    cb_options_init(&o);
    o.arena_bytes = (uint64_t)b.n_prompt * 8 + (1 << 20);
    o.pool_bytes = (uint64_t)b.n * N_NEW * 4 + (1 << 20);
    o.resume = 1;
    o.name = "bench_upgrade";
    if (cb_open(&b.h, &o))
        return fail(cb_message());
    if (submit_all(&b, N_NEW))
        return 1;
    while (n_before < (size_t)b.n * N_BEFORE) {
        if (next(&b, &e, &gap))
            return 1;
        before[n_before++] = gap;
    }
    (void)longest(&b);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", 1, 0);
    if (posix_spawnp(&pid, words[0], &actions, NULL, words, environ))
        return fail("can't run cbctl");
    while (n_done < b.n) {
        if (next(&b, &e, &gap))
            return 1;
        cb_info(b.h, &info);
        if (info.n_reconnects == 0 && gap > loading)
            loading = gap;
        if (info.n_reconnects > 0 && ++b.streams[e.user].n_behind == N_BEHIND)
            n_done++;
    }
    all = longest(&b);
    if (waitpid(pid, &status, 0) != pid || status)
        return fail("the upgrade failed");
    for (uint32_t i = 0; i < b.n; i++)
        cb_cancel(b.h, b.streams[i].id);
    cb_close(b.h);
    if (cb_open(&b.h, &o) || first_tokens(&b, &prefill))
        return 1;
    bench_sort(before, n_before);
    printf("%u,%u,%.1f,%.1f,%.1f,%.1f\n", b.n, b.n_prompt, before[n_before / 2] * 1e3,
           loading * 1e3, all * 1e3, prefill * 1e3);
    cb_close(b.h);
    free(b.prompt);
    return 0;
}
