/* cbctl bench: N requests of P prompt tokens and T new ones each, greedy, no stop, random ids from
 * a fixed seed. Two rounds, T = 1 and T = T:
 *
 *   prefill tok/s = N * P / time of the first round
 *   decode tok/s  = N * (T - 1) / (time of the second - time of the first)
 *
 * The clients are processes of their own, as users' programs are; what they see (when each token
 * came, what a submit and a poll cost) they write into one shared table, and the parent reckons. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "shm/doorbell.h"
#include "tools/cbctl.h"

enum { ROUNDS = 2, MESSAGE_BYTES = 256, FIRST_ID = 10, LAST_ID = 40000 };
#define LOOK_NS 100000000u /* between two looks whether somebody failed */

struct bench {
    const struct cbctl *ctl;
    uint32_t n_requests, n_prompt, n_new, n_processes, repeats;
    uint32_t wait_mode;
    bool is_named; /* the clients' lanes */
};

/* Shared by all processes; each writes its own requests' rows. */
struct table {
    cb_atomic32 ready, go; /* a barrier: all arrive in ready, the parent raises go */
    _Atomic uint32_t failed;
    char why[MESSAGE_BYTES];
    uint64_t *submit_start_ns; /* [n_requests], of the round that runs */
    uint64_t *submit_cost_ns;
    uint64_t *poll_cost_ns; /* [n_requests]: the dearest poll that brought this request's tokens */
    uint64_t *end_ns;
    uint64_t *token_ns; /* [n_requests][n_new] */
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- a client -------------------------------------------------------------------------------- */

struct client {
    const struct bench *bench;
    struct table *table;
    struct cb_handle *h;
    uint32_t first, n; /* its requests */
    uint32_t *ids;     /* [n][n_prompt] */
    char salt[64];     /* of the round: no prompt is found in the daemon's cache */
};

static void client_fail(struct client *c, const char *why)
{
    if (atomic_exchange(&c->table->failed, 1) == 0)
        snprintf(c->table->why, MESSAGE_BYTES, "%s", why);
}

static bool client_submit(struct client *c, uint32_t i, uint32_t n_new)
{
    struct cb_request request;
    uint64_t id, start;
    int r;

    cb_request_init(&request);
    request.ids = c->ids + (size_t)i * c->bench->n_prompt;
    request.n_ids = c->bench->n_prompt;
    request.max_new_tokens = n_new;
    request.flags = CB_IGNORE_EOS;
    request.user = i;
    request.cache_salt = c->salt;
    start = now_ns();
    r = cb_submit(c->h, &request, &id);
    c->table->submit_start_ns[c->first + i] = start;
    c->table->submit_cost_ns[c->first + i] = now_ns() - start;
    if (r)
        client_fail(c, cb_message());
    return !r;
}

static void client_event(struct client *c, const struct cb_event *event, uint64_t cost_ns)
{
    struct table *t = c->table;
    uint32_t i = c->first + (uint32_t)event->user;
    uint64_t now = now_ns();

    for (size_t k = 0; k < event->n_ids; k++)
        t->token_ns[(size_t)i * c->bench->n_new + event->first + k] = now;
    if (cost_ns > t->poll_cost_ns[i])
        t->poll_cost_ns[i] = cost_ns;
    if (event->status) {
        char words[MESSAGE_BYTES];

        client_fail(c, cb_explain(event->status, event->detail, words, sizeof words));
    }
}

static void client_round(struct client *c, uint32_t n_new)
{
    uint32_t n_over = 0;

    snprintf(c->salt, sizeof c->salt, "cbctl bench %ld %llu", (long)getpid(),
             (unsigned long long)now_ns());
    for (uint32_t i = 0; i < c->n; i++) {
        if (!client_submit(c, i, n_new))
            return;
    }
    while (n_over < c->n) {
        struct cb_event event;
        uint64_t start = now_ns();
        int r = cb_poll(c->h, &event);
        uint64_t cost = now_ns() - start;

        if (r == 0) {
            if (c->bench->wait_mode == CB_WAIT_SPIN)
                continue;
            cost = 0;
            r = cb_wait(c->h, 0, &event, -1);
        }
        if (r < 0) {
            client_fail(c, cb_message());
            return;
        }
        client_event(c, &event, cost);
        if (event.type == CB_EVENT_TOKENS)
            continue;
        c->table->end_ns[c->first + event.user] = now_ns();
        cb_release(c->h, event.id);
        n_over++;
    }
}

/* Who waits sleeps: to look again and again would take a core's time from what is measured. But now
 * and then whether somebody failed. */
static void barrier(struct table *t, uint32_t round)
{
    uint32_t go;

    atomic_fetch_add(&t->ready, 1);
    cb_doorbell_wake(&t->ready);
    while ((go = atomic_load(&t->go)) < round && !atomic_load(&t->failed))
        cb_doorbell_wait(&t->go, go, LOOK_NS);
}

static void client_main(const struct bench *bench, struct table *table, uint32_t process)
{
    struct client c = {.bench = bench, .table = table};
    struct cb_options options;
    struct cb_info info;
    uint64_t state = 0x9e3779b97f4a7c15ull;

    c.first = (uint32_t)((uint64_t)bench->n_requests * process / bench->n_processes);
    c.n = (uint32_t)((uint64_t)bench->n_requests * (process + 1) / bench->n_processes) - c.first;
    cb_options_init(&options);
    options.instance = bench->ctl->instance;
    options.name = "cbctl bench";
    options.n_slots = c.n;
    options.wait_mode = bench->wait_mode;
    options.named = bench->is_named;
    options.arena_bytes = (uint64_t)c.n * bench->n_prompt * 4 + (1 << 20);
    options.pool_bytes = (uint64_t)c.n * bench->n_new * 4 + (1 << 20);
    if (cb_open(&c.h, &options) || cb_info(c.h, &info)) {
        client_fail(&c, cb_message());
        return;
    }
    c.ids = malloc(((size_t)c.n * bench->n_prompt + 1) * sizeof *c.ids);
    if (!c.ids) {
        client_fail(&c, "out of memory");
        return;
    }
    /* The same ids whatever the number of processes: skip those of the ones before. */
    for (uint64_t i = 0; i < (uint64_t)c.first * bench->n_prompt; i++)
        next_random(&state);
    for (size_t i = 0; i < (size_t)c.n * bench->n_prompt; i++) {
        uint32_t first = info.n_vocab > FIRST_ID ? FIRST_ID : 0;
        uint32_t last = info.n_vocab < LAST_ID ? info.n_vocab : LAST_ID;

        c.ids[i] = first + (uint32_t)(next_random(&state) % (last - first));
    }
    for (uint32_t round = 1; round <= ROUNDS * bench->repeats && !atomic_load(&table->failed);
         round++) {
        barrier(table, round);
        client_round(&c, round % 2 ? 1 : bench->n_new);
    }
    barrier(table, UINT32_MAX);
    free(c.ids);
    cb_close(c.h);
}

/* ---- reckoning ------------------------------------------------------------------------------- */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts; the value below which `share` of them lie. */
static double quantile(uint64_t *v, size_t n, double share)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, compare_u64);
    return (double)v[(size_t)(share * (double)(n - 1))];
}

struct samples {
    uint64_t *v;
    size_t n, room;
};

static void sample_add(struct samples *s, uint64_t v)
{
    if (s->n < s->room)
        s->v[s->n++] = v;
}

struct figures {
    struct samples ttft, gap, submit, poll;
    double *prefill, *decode; /* [repeats] */
};

/* Of one round: its time; tokens and costs go to the samples. */
static double round_reckon(const struct bench *b, const struct table *t, uint32_t n_new,
                           struct figures *f)
{
    uint64_t start = UINT64_MAX, end = 0;

    for (uint32_t i = 0; i < b->n_requests; i++) {
        const uint64_t *token = t->token_ns + (size_t)i * b->n_new;

        start = t->submit_start_ns[i] < start ? t->submit_start_ns[i] : start;
        end = t->end_ns[i] > end ? t->end_ns[i] : end;
        sample_add(&f->submit, t->submit_cost_ns[i]);
        if (t->poll_cost_ns[i])
            sample_add(&f->poll, t->poll_cost_ns[i]);
        if (n_new == 1)
            continue;
        sample_add(&f->ttft, token[0] - t->submit_start_ns[i]);
        for (uint32_t k = 1; k < n_new; k++)
            sample_add(&f->gap, token[k] - token[k - 1]);
    }
    return (double)(end - start) / 1e9;
}

static void parent_main(const struct bench *b, struct table *t, struct figures *f)
{
    double first = 0;

    for (uint32_t round = 1; round <= ROUNDS * b->repeats + 1; round++) {
        uint32_t ready;

        while ((ready = atomic_load(&t->ready)) < round * b->n_processes) {
            siginfo_t dead = {0};

            /* A client that was killed never arrives. */
            if (!waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT) && dead.si_pid &&
                !atomic_exchange(&t->failed, 1))
                snprintf(t->why, MESSAGE_BYTES, "a client process died");
            if (atomic_load(&t->failed))
                return;
            cb_doorbell_wait(&t->ready, ready, LOOK_NS);
        }
        if (round > 1) {
            uint32_t n_new = round % 2 ? b->n_new : 1;
            double time = round_reckon(b, t, n_new, f);
            uint32_t repeat = (round - 2) / 2;

            if (n_new == 1 && round % 2 == 0) {
                first = time;
                f->prefill[repeat] = (double)b->n_requests * b->n_prompt / time;
            } else {
                f->decode[repeat] =
                    time > first ? (double)b->n_requests * (b->n_new - 1) / (time - first) : 0;
            }
        }
        memset(t->poll_cost_ns, 0, b->n_requests * sizeof *t->poll_cost_ns);
        atomic_store(&t->go, round > ROUNDS * b->repeats ? UINT32_MAX : round);
        cb_doorbell_wake(&t->go);
    }
}

static json_t *figures_json(const struct bench *b, struct figures *f)
{
    json_t *o = json_object();
    const struct {
        const char *key;
        struct samples *s;
        double share, unit;
    } rows[] = {
        {"ttft_ms_p50", &f->ttft, 0.5, 1e6},      {"ttft_ms_p99", &f->ttft, 0.99, 1e6},
        {"itl_ms_p50", &f->gap, 0.5, 1e6},        {"itl_ms_p99", &f->gap, 0.99, 1e6},
        {"itl_ms_max", &f->gap, 1, 1e6},          {"submit_us_p50", &f->submit, 0.5, 1e3},
        {"submit_us_p99", &f->submit, 0.99, 1e3}, {"poll_us_p50", &f->poll, 0.5, 1e3},
        {"poll_us_p99", &f->poll, 0.99, 1e3},
    };

    qsort(f->prefill, b->repeats, sizeof *f->prefill, compare_double);
    qsort(f->decode, b->repeats, sizeof *f->decode, compare_double);
    json_object_set_new(o, "requests", json_integer(b->n_requests));
    json_object_set_new(o, "prompt_tokens", json_integer(b->n_prompt));
    json_object_set_new(o, "new_tokens", json_integer(b->n_new));
    json_object_set_new(o, "processes", json_integer(b->n_processes));
    json_object_set_new(o, "prefill_tok_s", json_real(f->prefill[b->repeats / 2]));
    json_object_set_new(o, "decode_tok_s", json_real(f->decode[b->repeats / 2]));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        json_object_set_new(
            o, rows[i].key,
            json_real(quantile(rows[i].s->v, rows[i].s->n, rows[i].share) / rows[i].unit));
    return o;
}

static void figures_print(const struct bench *b, const json_t *o)
{
    const char *key;
    json_t *value;

    if (b->ctl->json) {
        json_dumpf(o, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        putchar('\n');
        return;
    }
    printf("%u requests, %u prompt and %u new tokens each, %u process%s, %u round%s\n",
           b->n_requests, b->n_prompt, b->n_new, b->n_processes, b->n_processes == 1 ? "" : "es",
           b->repeats, b->repeats == 1 ? "" : "s");
    json_object_foreach((json_t *)o, key, value)
    {
        if (json_is_real(value))
            printf("  %-16s %12.3f\n", key, json_real_value(value));
    }
}

/* ---- the command ----------------------------------------------------------------------------- */

enum { KEY_NAMED = 256 };

static const struct argp_option options[] = {
    {"requests", 'r', "N", 0, "requests at once (default 32)", 0},
    {"prompt-tokens", 'p', "P", 0, "tokens of each prompt (default 128)", 0},
    {"new-tokens", 't', "T", 0, "tokens to make for each, at least 2 (default 64)", 0},
    {"processes", 'k', "K", 0, "client processes that share the requests (default 1)", 0},
    {"repeats", 'R', "N", 0, "rounds; tokens a second are the median (default 1)", 0},
    {"spin", 's', NULL, 0, "clients never sleep, they spin; each wants a core", 0},
    {"named", KEY_NAMED, NULL, 0, "lanes by names in /dev/shm, woken by semaphores", 0},
    {"json", 'j', NULL, 0, "print a JSON object", 0},
    {0},
};

struct parse_state {
    struct bench bench;
    struct cbctl ctl;
    bool failed;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct parse_state *ps = state->input;
    struct bench *b = &ps->bench;
    uint64_t v = 0;

    switch (key) {
    case 'r':
        ps->failed |= !cbctl_whole(b->ctl, "--requests", arg, 1, 4096, &v);
        b->n_requests = (uint32_t)v;
        return 0;
    case 'p':
        ps->failed |= !cbctl_whole(b->ctl, "--prompt-tokens", arg, 1, 1 << 20, &v);
        b->n_prompt = (uint32_t)v;
        return 0;
    case 't':
        ps->failed |= !cbctl_whole(b->ctl, "--new-tokens", arg, 2, 1 << 20, &v);
        b->n_new = (uint32_t)v;
        return 0;
    case 'k':
        ps->failed |= !cbctl_whole(b->ctl, "--processes", arg, 1, 256, &v);
        b->n_processes = (uint32_t)v;
        return 0;
    case 'R':
        ps->failed |= !cbctl_whole(b->ctl, "--repeats", arg, 1, 1000, &v);
        b->repeats = (uint32_t)v;
        return 0;
    case 's':
        b->wait_mode = CB_WAIT_SPIN;
        return 0;
    case KEY_NAMED:
        b->is_named = true;
        return 0;
    case 'j':
        ps->ctl.json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool figures_init(const struct bench *b, struct figures *f)
{
    struct samples *all[] = {&f->ttft, &f->gap, &f->submit, &f->poll};

    for (size_t i = 0; i < 4; i++) {
        all[i]->room = (size_t)b->n_requests * b->repeats * ROUNDS * (i == 1 ? b->n_new : 1);
        all[i]->v = malloc(all[i]->room * sizeof(uint64_t));
        if (!all[i]->v)
            return false;
    }
    f->prefill = calloc(b->repeats, sizeof *f->prefill);
    f->decode = calloc(b->repeats, sizeof *f->decode);
    return f->prefill && f->decode;
}

static void figures_fini(struct figures *f)
{
    free(f->ttft.v);
    free(f->gap.v);
    free(f->submit.v);
    free(f->poll.v);
    free(f->prefill);
    free(f->decode);
}

static struct table *table_map(const struct bench *b, size_t *bytesp)
{
    size_t n = b->n_requests, words = 4 * n + n * b->n_new;
    struct table *t;
    uint64_t *rows;

    *bytesp = sizeof *t + words * sizeof(uint64_t);
    t = mmap(NULL, *bytesp, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED)
        return NULL;
    rows = (uint64_t *)(t + 1);
    t->submit_start_ns = rows;
    t->submit_cost_ns = rows + n;
    t->poll_cost_ns = rows + 2 * n;
    t->end_ns = rows + 3 * n;
    t->token_ns = rows + 4 * n;
    return t;
}

static int bench_run(const struct bench *b)
{
    size_t bytes;
    struct table *t = table_map(b, &bytes);
    struct figures f = {0};
    bool failed = !t || !figures_init(b, &f);
    uint32_t n_started = 0;
    pid_t parent = getpid();

    if (failed)
        cbctl_complain(b->ctl, "out of memory");
    for (; !failed && n_started < b->n_processes; n_started++) {
        pid_t pid = fork();

        if (pid == 0) {
            /* Whoever is left alone by a killed parent must not go on loading the daemon. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() == parent)
                client_main(b, t, n_started);
            _exit(0);
        }
        if (pid < 0) {
            cbctl_complain(b->ctl, "can't fork: %s", strerror(errno));
            atomic_store(&t->failed, failed = true);
            break;
        }
    }
    if (!failed)
        parent_main(b, t, &f);
    while (n_started--)
        wait(NULL);
    if (!failed && atomic_load(&t->failed)) {
        cbctl_complain(b->ctl, "%s", t->why);
        failed = true;
    }
    if (!failed) {
        json_t *o = figures_json(b, &f);

        figures_print(b, o);
        json_decref(o);
    }
    figures_fini(&f);
    if (t)
        munmap(t, bytes);
    return failed ? CBCTL_FAILED : CBCTL_OK;
}

int cmd_bench(const struct cbctl *ctl, int argc, char **argv)
{
    static const char doc[] =
        "Measures the daemon with random prompts: tokens a second, time to first "
        "token (ttft), time between tokens (itl), cost of a submit and of a poll.";
    const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct parse_state ps = {
        .bench = {.n_requests = 32, .n_prompt = 128, .n_new = 64, .n_processes = 1, .repeats = 1},
        .ctl = *ctl,
    };

    ps.bench.ctl = &ps.ctl;
    if (argp_parse(&argp, argc, argv, 0, NULL, &ps) || ps.failed)
        return CBCTL_USAGE;
    if (ps.bench.n_processes > ps.bench.n_requests)
        ps.bench.n_processes = ps.bench.n_requests;
    return bench_run(&ps.bench);
}
