/* Whole batches: order, names, what fails alone, what others on the handle do meanwhile, and that it
 * comes back, whatever becomes of the daemon. */
#include "client/cbclient.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "client/bar.h"
#include "tests/client/pair.h"

TestSuite(batch, .timeout = 60);

enum { MANY = 300, NEW = 5 };

/* n prompts of one id each, i mod 500; a short answer each. */
struct job {
    uint32_t ids[MANY];
    struct cb_prompt prompts[MANY];
    struct cb_request config;
    struct cb_batch batch;
    struct cb_outputs *outputs;
};

static struct job *job_of(size_t n)
{
    struct job *j = calloc(1, sizeof(*j));
    cb_request_init(&j->config);
    j->config.max_new_tokens = NEW;
    cb_batch_init(&j->batch);
    j->batch.prompts = j->prompts;
    j->batch.n_prompts = n;
    j->batch.config = &j->config;
    for (size_t i = 0; i < n; i++) {
        j->ids[i] = (uint32_t)(i % 500);
        j->prompts[i].ids = &j->ids[i];
        j->prompts[i].n_ids = 1;
    }
    return j;
}

static int run(struct pair p, struct job *j)
{
    cb_outputs_free(j->outputs);
    int r = cb_generate_batch(p.h, &j->batch, &j->outputs);
    cr_assert(r < 0 ? !j->outputs : j->outputs->n_failed == (size_t)r, "%d: %s", r, cb_message());
    return r;
}

static void done(struct job *j)
{
    cb_outputs_free(j->outputs);
    free(j);
}

/* Output i is of this prompt, whole and right. */
static void expect_right(const struct job *j, size_t i, uint32_t first)
{
    const struct cb_output *o = &j->outputs->v[i];
    cr_assert(!o->error && o->status == 0 && o->end == CB_END_LENGTH, "%s: %s", o->request_id,
              o->error);
    cr_assert(o->n_prompt == 1 && o->prompt_ids[0] == first && o->n_generated == NEW);
    for (uint32_t k = 0; k < NEW; k++)
        cr_assert_eq(o->generated[k], first + k);
    cr_assert_eq(o->text[o->text_bytes], 0);
}

Test(batch, comes_back_in_the_order_of_its_prompts)
{
    struct pair p = start_plain();
    struct job *j = job_of(MANY);
    cr_assert_eq(run(p, j), 0);
    cr_assert_eq(j->outputs->n, MANY);
    for (size_t i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof(name), "req_%zu", i);
        expect_right(j, i, j->ids[i]);
        cr_assert_str_eq(j->outputs->v[i].request_id, name);
        cr_assert_eq(cb_outputs_find(j->outputs, name), &j->outputs->v[i]);
        cr_assert(j->outputs->v[i].created_ns && !j->outputs->v[i].times_ns &&
                  !j->outputs->v[i].logprobs);
    }
    cr_assert_null(cb_outputs_find(j->outputs, "req_300"));
    j->batch.n_prompts = 2; /* names count on */
    cr_assert_eq(run(p, j), 0);
    cr_assert_str_eq(j->outputs->v[1].request_id, "req_301");
    done(j);
    stop(p);
}

Test(batch, of_nothing_is_nothing)
{
    struct job *j = job_of(0);
    struct pair nobody = {NULL, NULL};
    cr_assert_eq(run(nobody, j), 0, "no daemon is needed");
    cr_assert(j->outputs && j->outputs->n == 0);
    done(j);
}

Test(batch, children_come_after_their_parent)
{
    struct pair p = start_plain();
    struct job *j = job_of(3);
    j->batch.n_sequences = 3;
    j->config.temperature = 1;
    j->config.flags = CB_HAS_SEED;
    j->config.seed = 7;
    cr_assert_eq(run(p, j), 0);
    cr_assert_eq(j->outputs->n, 9);
    for (uint32_t i = 0; i < 9; i++) {
        const struct cb_output *o = &j->outputs->v[i];
        char name[32];
        snprintf(name, sizeof(name), i % 3 ? "req_%u__child#%u" : "req_%u", i / 3, i % 3 - 1);
        cr_assert_str_eq(o->request_id, name);
        cr_assert(o->prompt_idx == i / 3 && o->sequence == i % 3);
        cr_assert_eq(o->seed, 7);
        expect_right(j, i, i / 3);
    }
    done(j);
    stop(p);
}

Test(batch, a_bad_prompt_fails_alone)
{
    struct pair p = start_plain();
    struct job *j = job_of(6);
    j->ids[1] = FAKE_VOCAB;      /* no such id */
    j->prompts[2].n_ids = 0;     /* empty */
    j->prompts[3].text = "both"; /* and ids */
    cr_assert_eq(run(p, j), 3);
    expect_right(j, 0, 0);
    expect_right(j, 4, 4);
    expect_right(j, 5, 5);
    cr_assert_eq(j->outputs->v[1].status, CB_BAD_TOKEN);
    cr_assert(strstr(j->outputs->v[1].error, "600"), "%s", j->outputs->v[1].error);
    cr_assert_eq(j->outputs->v[2].status, CB_EMPTY_PROMPT);
    cr_assert_eq(j->outputs->v[3].status, CB_INVALID);
    cr_assert(strstr(j->outputs->v[3].error, "more than one"), "%s", j->outputs->v[3].error);
    cr_assert_eq(j->outputs->v[1].created_ns, 0);
    done(j);
    stop(p);
}

Test(batch, prompts_have_parameters_of_their_own_where_that_is_allowed)
{
    static const float temperature = 0.5f, top_p = 0.5f;
    static const int32_t top_k = 3;
    struct pair p = start_plain();
    struct job *j = job_of(4);
    j->prompts[1].temperature = &temperature;
    j->prompts[2].top_k = &top_k;
    j->prompts[3].top_p = &top_p;
    j->config.temperature = 0.9f;
    j->config.top_k = 10;
    cr_assert_eq(run(p, j), 3, "it was not asked for");
    cr_assert(strstr(j->outputs->v[1].error, "temperature"), "%s", j->outputs->v[1].error);
    cr_assert(strstr(j->outputs->v[2].error, "top_k"), "%s", j->outputs->v[2].error);
    j->batch.flags = CB_BATCH_PER_REQUEST;
    cr_assert_eq(run(p, j), 1, "the configuration has no top_p");
    cr_assert(strstr(j->outputs->v[3].error, "top_p"), "%s", j->outputs->v[3].error);
    j->config.top_p = 0.9f;
    cr_assert_eq(run(p, j), 0);
    j->config.temperature = 0; /* greedy: nothing of the three is in use */
    cr_assert_eq(run(p, j), 3);
    done(j);
    stop(p);
}

Test(batch, bad_arguments)
{
    struct pair p = start_plain();
    struct job *j = job_of(1);
    struct cb_outputs *o;
    cr_assert_eq(cb_generate_batch(p.h, NULL, &o), CB_INVALID);
    cr_assert_eq(cb_generate_batch(p.h, &j->batch, NULL), CB_INVALID);
    j->batch.n_sequences = 2;
    cr_assert_eq(run(p, j), CB_INVALID);
    expect_message("greedy");
    j->batch.n_sequences = 0;
    cr_assert_eq(run(p, j), CB_INVALID);
    j->batch.n_sequences = 1;
    j->batch.flags = 0x80;
    cr_assert_eq(run(p, j), CB_INVALID);
    j->batch.flags = 0;
    j->config.text = "of its own";
    cr_assert_eq(run(p, j), CB_INVALID);
    j->config.text = NULL;
    j->config.size--;
    cr_assert_eq(run(p, j), CB_INVALID);
    j->config.size++;
    j->batch.stall_ms = 0;
    cr_assert_eq(run(p, j), CB_INVALID);
    j->batch.stall_ms = 1;
    j->batch.size--;
    cr_assert_eq(run(p, j), CB_INVALID);
    done(j);
    stop(p);
}

Test(batch, opens_a_handle_if_it_has_none)
{
    struct fake *f = fake_start(&(struct fake_config){0});
    struct pair p = {f, NULL};
    struct job *j = job_of(3);
    struct cb_options o;
    char dir[256];
    snprintf(dir, sizeof(dir), "%s", fake_dir(f));
    cb_options_init(&o);
    o.run_dir = dir;
    j->batch.open = &o;
    cr_assert_eq(run(p, j), 0, "%s", cb_message());
    expect_right(j, 2, 2);
    fake_stop(f);
    cr_assert_eq(run(p, j), CB_NO_DAEMON);
    done(j);
}

Test(batch, times_and_limit_and_warm_up)
{
    struct pair p = start_plain();
    struct job *j = job_of(2);
    struct cb_handle *h = p.h;
    j->batch.flags = CB_BATCH_TIMES | CB_BATCH_NO_WARMUP;
    j->batch.max_new_tokens = 3;
    cr_assert_eq(run(p, j), 0);
    cr_assert(j->outputs->v[0].n_generated == 3 && j->outputs->v[0].times_ns[2] == 1002);
    cr_assert(j->outputs->v[0].started_ns == 1 && j->outputs->v[0].ended_ns == 3);
    struct cb_event e;
    cr_assert_eq(cb_poll(h, &e), 0, "nothing is left of it");
    done(j);
    stop(p);
}

Test(batch, a_handle_is_warmed_once)
{
    struct pair p = start_plain(), q = start_plain();
    struct job *j = job_of(1);
    struct cb_event e;
    cr_assert_eq(cb_warmup(p.h, -2), CB_INVALID);
    fake_hold(p.f, true);
    cr_assert_eq(cb_warmup(p.h, 10), CB_TIMEOUT);
    fake_hold(p.f, false);
    cr_assert_eq(cb_warmup(p.h, HANG_MS), 0, "%s", cb_message());
    cr_assert_eq(cb_poll(p.h, &e), 0, "nobody sees it");
    fake_hold(p.f, true);
    cr_assert_eq(cb_warmup(p.h, 10), 0, "it is warm, and asks for nothing");
    cr_assert_eq(run(q, j), 0);
    fake_hold(q.f, true);
    cr_assert_eq(cb_warmup(q.h, 10), 0, "a batch has warmed it");
    done(j);
    stop(p);
    stop(q);
}

/* Requests of others on the handle, whose events nobody takes meanwhile, hold all slots but one. */
Test(batch, shares_the_handle)
{
    struct pair p = start(&(struct fake_config){.n_slots = 8}, 0, 0);
    struct job *j = job_of(40);
    uint64_t ids[7];
    for (int i = 0; i < 7; i++)
        ids[i] = submit(p.h, 100, NEW, 0);
    cr_assert_eq(run(p, j), 0);
    expect_right(j, 39, 39);
    for (int i = 0; i < 7; i++)
        take_all(p.h, ids[i], 100);
    done(j);
    stop(p);
}

static void *release_later(void *arg)
{
    struct cb_handle *h = ((void **)arg)[0];
    uint64_t *ids = ((void **)arg)[1];
    struct timespec t = {0, 30000000};
    nanosleep(&t, NULL);
    for (int i = 0; i < 2; i++)
        cb_release(h, ids[i]);
    return NULL;
}

Test(batch, waits_for_a_slot_if_others_hold_all)
{
    struct pair p = start(&(struct fake_config){.n_slots = 2}, 0, 0);
    struct job *j = job_of(5);
    uint64_t ids[2] = {submit(p.h, 100, NEW, 0), submit(p.h, 100, NEW, 0)};
    pthread_t thread;
    pthread_create(&thread, NULL, release_later, (void *[]){p.h, ids});
    cr_assert_eq(run(p, j), 0);
    expect_right(j, 4, 4);
    pthread_join(thread, NULL);
    done(j);
    stop(p);
}

struct twin {
    struct pair p;
    struct job *j;
};

static void *run_twin(void *arg)
{
    struct twin *t = arg;
    cr_assert_eq(run(t->p, t->j), 0);
    return NULL;
}

/* Two at once on one handle: neither takes the other's. */
Test(batch, several_threads_have_one_each)
{
    struct pair p = start(&(struct fake_config){.n_slots = 16}, 0, 0);
    struct twin a = {p, job_of(MANY)}, b = {p, job_of(MANY)};
    pthread_t thread;
    pthread_create(&thread, NULL, run_twin, &a);
    run_twin(&b);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < MANY; i++) {
        expect_right(a.j, i, a.j->ids[i]);
        expect_right(b.j, i, b.j->ids[i]);
    }
    done(a.j);
    done(b.j);
    stop(p);
}

struct watched {
    struct fake *f;
    size_t n_calls, stop_after, kill_after, last;
};

static int watch(const struct cb_progress *progress, void *arg)
{
    struct watched *w = arg;
    w->n_calls++;
    cr_assert_eq(progress->n_done, w->n_calls);
    cr_assert(progress->output && progress->output->request_id);
    w->last = progress->n_failed;
    if (w->kill_after && w->n_calls == w->kill_after)
        fake_kill(w->f);
    return w->stop_after && w->n_calls >= w->stop_after;
}

Test(batch, progress_is_told_and_can_end_it)
{
    struct pair p = start(&(struct fake_config){.n_slots = 4}, 0, 0);
    struct job *j = job_of(MANY);
    struct watched w = {.f = p.f};
    j->batch.progress = watch;
    j->batch.progress_arg = &w;
    cr_assert_eq(run(p, j), 0);
    cr_assert(w.n_calls == MANY && w.last == 0);
    w = (struct watched){.f = p.f, .stop_after = 10};
    int n_failed = run(p, j);
    cr_assert(n_failed >= MANY - 20 && n_failed <= MANY - 10, "%d", n_failed);
    cr_assert_eq(w.n_calls, MANY);
    for (size_t i = 0; i < MANY; i++)
        cr_assert(!j->outputs->v[i].error || strstr(j->outputs->v[i].error, "cancelled"));
    w = (struct watched){.f = p.f};
    cr_assert_eq(run(p, j), 0, "the handle goes on");
    done(j);
    stop(p);
}

Test(batch, a_dying_daemon_fails_what_is_left)
{
    struct pair p = start(&(struct fake_config){.n_slots = 4}, 0, 0);
    struct job *j = job_of(MANY);
    struct watched w = {.f = p.f, .kill_after = 20};
    j->batch.progress = watch;
    j->batch.progress_arg = &w;
    int n_failed = run(p, j);
    cr_assert(n_failed >= MANY - 40 && n_failed <= MANY - 20, "%d", n_failed);
    for (size_t i = 0; i < MANY; i++)
        if (j->outputs->v[i].error)
            cr_assert_eq(j->outputs->v[i].status, CB_LOST);
        else
            expect_right(j, i, j->ids[i]);
    done(j);
    stop(p);
}

Test(batch, does_not_wait_for_ever)
{
    struct pair p = start_plain();
    struct job *j = job_of(3);
    fake_hold(p.f, true);
    j->batch.stall_ms = 50;
    j->batch.flags = CB_BATCH_NO_WARMUP;
    cr_assert_eq(run(p, j), 3);
    cr_assert_eq(j->outputs->v[2].status, CB_TIMEOUT);
    cr_assert(strstr(j->outputs->v[2].error, "50 ms"), "%s", j->outputs->v[2].error);
    done(j);
    stop(p);
}

Test(batch, of_a_stopped_handle_fails)
{
    struct pair p = start_plain();
    struct job *j = job_of(3);
    cr_assert_eq(cb_stop(p.h, 0), 0);
    cr_assert_eq(run(p, j), 3);
    cr_assert_eq(j->outputs->v[0].status, CB_NOT_RUNNING);
    done(j);
    stop(p);
}

/* ---- the bar --------------------------------------------------------------------------------- */

Test(bar, says_how_far_how_fast_and_how_long)
{
    static const struct {
        size_t total, before, n, failed;
        uint64_t s;
        unsigned width;
        const char *text;
    } cases[] = {
        {1000, 0, 450, 0, 10, 60, " 45%|##########             | 450/1000 [00:10<00:12, 45.0/s]"},
        {100, 50, 75, 3, 5, 64, " 75%|###############     | 75/100 [00:05<00:05, 5.0/s, 3 failed]"},
        {10, 0, 0, 0, 0, 50, "  0%|                      | 0/10 [00:00<?, 0.0/s]"},
        {10, 0, 10, 0, 7200, 55, "100%|####################| 10/10 [2:00:00<00:00, 0.0/s]"},
        {0, 0, 12, 0, 4, 60, "12 [00:04, 3.0/s]"},
        {10, 0, 5, 0, 1, 12, " 50%|| 5/10 "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cb_bar bar = {.total = cases[i].total, .n_before = cases[i].before};
        char out[CB_BAR_BYTES];
        cb_bar_text(&bar, cases[i].n, cases[i].failed, cases[i].s * 1000000000u, cases[i].width,
                    out);
        cr_expect_str_eq(out, cases[i].text, "case %zu: \"%s\"", i, out);
    }
}

/* All that a terminal shows until the end of a line, which comes in pieces. */
static void read_line(int fd, char *out, size_t n)
{
    size_t got = 0;
    struct pollfd p = {fd, POLLIN, 0};
    while (got + 1 < n && (!got || out[got - 1] != '\n')) {
        cr_assert_eq(poll(&p, 1, HANG_MS), 1);
        ssize_t more = read(fd, out + got, n - 1 - got);
        got += more > 0 ? (size_t)more : 0;
    }
    out[got] = 0;
}

Test(bar, is_drawn_on_terminals_only)
{
    struct pair p = start_plain();
    struct job *j = job_of(20);
    int pipes[2], terminal = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    char text[4096];
    cr_assert(pipe2(pipes, O_NONBLOCK) == 0 && terminal >= 0 && !unlockpt(terminal));
    int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    cr_assert_geq(slave, 0);
    j->batch.progress_fd = pipes[1];
    cr_assert_eq(run(p, j), 0);
    cr_assert_lt(read(pipes[0], text, sizeof(text)), 0);
    j->batch.progress_fd = slave;
    cr_assert_eq(run(p, j), 0);
    read_line(terminal, text, sizeof(text));
    cr_assert(strstr(text, "100%|") && strstr(text, "| 20/20 ["), "%s", text);
    done(j);
    stop(p);
}
