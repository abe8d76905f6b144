/* timing N: whether the time to a first token tells what another user has cached. Against a running
 * daemon (CBD_RUNTIME_DIR) that all uids may connect to; as root, since it is two users.
 *
 * Four kinds of sample take turns at random, N of each. In all of them somebody sends a prompt, then
 * the watcher sends one that nobody has sent before, or the same, and looks at the clock:
 *
 *   by the other user   the same | another one
 *   by the watcher      the same | another one
 *
 * How well the clock tells each pair apart is the area under the ROC curve: the share of pairs in
 * which the longer time is of the prompt that was new. 0.5: not at all. Its confidence interval is by
 * Hanley and McNeil, "The Meaning and Use of the Area under a ROC Curve", Radiology 143 (1982).
 * Ends with 0 if the 95 % interval of the first pair lies within 0.45 to 0.55, and the area of the
 * second one is above 0.95: a watch that sees nothing proves nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cbclient.h"

enum { N_PROMPT = 256, OTHER_UID = 64001, WATCHER_UID = 64002 };
enum kind { OTHER_SAME, OTHER_NEW, OWN_SAME, OWN_NEW, N_KINDS };

struct sample {
    double seconds;
    enum kind kind;
};

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void fail(const char *what)
{
    fprintf(stderr, "timing: %s: %s\n", what, cb_message());
    exit(2);
}

static struct cb_handle *open_as(uid_t uid)
{
    struct cb_handle *h;

    if (seteuid(uid)) {
        perror("timing: becoming another user (run it as root)");
        exit(2);
    }
    if (cb_open(&h, NULL))
        fail("connecting");
    if (seteuid(0)) {
        perror("timing: becoming root again");
        exit(2);
    }
    return h;
}

/* Seconds until the first token, which is the only one. */
static double ask(struct cb_handle *h, const uint32_t *prompt)
{
    struct cb_request r;
    struct cb_event event;
    uint64_t id;
    double begun;

    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = 1;
    r.flags = CB_IGNORE_EOS;
    begun = now();
    if (cb_submit(h, &r, &id))
        fail("submitting");
    do {
        if (cb_wait(h, id, &event, 60000) != 1)
            fail("waiting");
        if (event.type == CB_EVENT_REJECTED)
            fail("a request was rejected");
    } while (event.n_ids == 0);
    begun = now() - begun;
    if (cb_release(h, id))
        fail("releasing");
    return begun;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const struct sample *)a)->seconds, y = ((const struct sample *)b)->seconds;

    return (x > y) - (x < y);
}

/* Over samples in order of time: how often `later` took longer than `sooner`. */
static double area(const struct sample *samples, size_t n, enum kind sooner, enum kind later,
                   double *marginp)
{
    double n_sooner = 0, n_later = 0, won = 0;

    for (size_t i = 0; i < n;) {
        double n_tied[2] = {0}; /* of the same time */
        double seconds = samples[i].seconds;
        for (; i < n && samples[i].seconds == seconds; i++) {
            n_tied[0] += samples[i].kind == sooner;
            n_tied[1] += samples[i].kind == later;
        }
        won += n_tied[1] * (n_sooner + n_tied[0] / 2);
        n_sooner += n_tied[0];
        n_later += n_tied[1];
    }
    double a = won / (n_sooner * n_later);
    double q1 = a / (2 - a), q2 = 2 * a * a / (1 + a);
    double variance = a * (1 - a) + (n_later - 1) * (q1 - a * a) + (n_sooner - 1) * (q2 - a * a);
    *marginp = 1.96 * sqrt(variance / (n_sooner * n_later));
    return a;
}

static double median_us(const struct sample *samples, size_t n, enum kind kind, size_t n_of_kind)
{
    size_t seen = 0;

    for (size_t i = 0; i < n; i++)
        if (samples[i].kind == kind && ++seen > n_of_kind / 2)
            return samples[i].seconds * 1e6;
    return 0;
}

int main(int argc, char **argv)
{
    size_t n_each = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, n = n_each * N_KINDS;
    struct sample *samples = calloc(n ? n : 1, sizeof *samples);
    uint32_t prompts[2][N_PROMPT];
    uint64_t state = 2026;

    if (n_each < 10 || !samples) {
        fprintf(stderr, "usage: timing SAMPLES   (of each kind, 10 or more)\n");
        return 2;
    }
    struct cb_handle *other = open_as(OTHER_UID), *watcher = open_as(WATCHER_UID);
    for (size_t i = 0; i < n; i++)
        samples[i].kind = (enum kind)(i % N_KINDS);
    for (size_t i = n - 1; i > 0; i--) {
        size_t k = draw(&state) % (i + 1);
        enum kind kept = samples[i].kind;
        samples[i].kind = samples[k].kind;
        samples[k].kind = kept;
    }
    for (size_t i = 0; i < n; i++) {
        enum kind kind = samples[i].kind;
        for (size_t k = 0; k < 2 * N_PROMPT; k++)
            prompts[k / N_PROMPT][k % N_PROMPT] = 300 + draw(&state) % 40000;
        (void)ask(kind <= OTHER_NEW ? other : watcher, prompts[0]);
        /* From one place in memory, whichever it is. */
        if (kind == OTHER_SAME || kind == OWN_SAME)
            memcpy(prompts[1], prompts[0], sizeof prompts[1]);
        samples[i].seconds = ask(watcher, prompts[1]);
        if (isatty(2) && i % 100 == 0)
            fprintf(stderr, "\r%zu of %zu samples", i, n);
    }
    if (isatty(2))
        fprintf(stderr, "\r%*s\r", 40, "");
    cb_close(other);
    cb_close(watcher);
    qsort(samples, n, sizeof *samples, by_seconds);

    double margins[2], areas[2] = {area(samples, n, OTHER_SAME, OTHER_NEW, &margins[0]),
                                   area(samples, n, OWN_SAME, OWN_NEW, &margins[1])};
    for (int i = 0; i < 2; i++)
        printf("%-18s same %4.0f us, new %4.0f us (medians of %zu); told apart %.3f (%.3f-%.3f)\n",
               i == 0 ? "by another user:" : "by the same user:",
               median_us(samples, n, i == 0 ? OTHER_SAME : OWN_SAME, n_each),
               median_us(samples, n, i == 0 ? OTHER_NEW : OWN_NEW, n_each), n_each, areas[i],
               areas[i] - margins[i], areas[i] + margins[i]);
    free(samples);
    return areas[0] - margins[0] > 0.45 && areas[0] + margins[0] < 0.55 && areas[1] > 0.95 ? 0 : 1;
}
