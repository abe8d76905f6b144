/* bench_gap P: how long requests that decode wait for a token while a prompt of P random ids is
 * prefilled beside them, against a running daemon (CBD_RUNTIME_DIR). Eight decode; after some tokens
 * the prompt is sent. CSV without a head, milliseconds between a request's tokens:
 *
 *   P,median before,median beside it,90th percentile,longest,seconds of its prefill */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tests/bench/measure.h"

enum { N_DECODING = 8, N_PROMPT = 64, N_NEW = 2000, N_BEFORE = 60, FIRST_ID = 10, LAST_ID = 40000 };

static int fail(const char *what)
{
    fprintf(stderr, "bench_gap: %s\n", what);
    return 1;
}

static int submit(struct cb_handle *h, uint32_t *ids, uint32_t n, uint32_t n_new, uint64_t *idp)
{
    char salt[32]; /* no run finds another's prompts in the cache */
    struct cb_request r;

    snprintf(salt, sizeof salt, "gap %ld", (long)getpid());
    for (uint32_t k = 0; k < n; k++)
        ids[k] = FIRST_ID + (uint32_t)random() % (LAST_ID - FIRST_ID);
    cb_request_init(&r);
    r.ids = ids;
    r.n_ids = n;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS;
    r.user = n_new == 1;
    r.cache_salt = salt;
    return cb_submit(h, &r, idp) ? fail(cb_message()) : 0;
}

/* The next event, which must be of tokens or of an end without a status. */
static int next(struct cb_handle *h, struct cb_event *e)
{
    char words[256];

    if (cb_wait(h, 0, e, -1) < 0)
        return fail(cb_message());
    return e->status ? fail(cb_explain(e->status, e->detail, words, sizeof words)) : 0;
}

int main(int argc, char **argv)
{
    uint32_t n_long = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0, n_tokens = 0;
    static double gaps[2][N_DECODING * N_NEW];
    size_t n_gaps[2] = {0};
    double last[N_DECODING] = {0}, begun = 0, seconds = 0;
    uint64_t ids[N_DECODING], id;
    struct cb_options o;
    struct cb_handle *h;
    struct cb_event e;
    uint32_t *prompt = malloc((n_long + N_PROMPT) * sizeof *prompt);

    if (!n_long || !prompt)
        return fail("usage: bench_gap P");
    cb_options_init(&o);
    o.arena_bytes = (uint64_t)n_long * 4 + (1 << 20);
    o.pool_bytes = N_DECODING * N_NEW * 4 + (1 << 20);
    o.name = "bench_gap";
    if (cb_open(&h, &o))
        return fail(cb_message());
    for (uint32_t i = 0; i < N_DECODING; i++)
        if (submit(h, prompt, N_PROMPT, N_NEW, &ids[i]))
            return 1;
    while (seconds == 0) {
        if (next(h, &e))
            return 1;
        double now = bench_now();
        if (e.user) {
            seconds = now - begun;
            break;
        }
        for (uint32_t i = 0; i < N_DECODING; i++) {
            if (ids[i] != e.id)
                continue;
            /* Of several tokens in one event, those behind the first came at once. */
            if (last[i] > 0)
                gaps[begun > 0][n_gaps[begun > 0]++] = now - last[i];
            last[i] = now;
        }
        if (e.type == CB_EVENT_END)
            return fail("those that decode ended before the prompt was through");
        if (begun == 0 && ++n_tokens == N_BEFORE * N_DECODING) {
            /* The first tokens came between the others' prompts. */
            n_gaps[0] = n_gaps[0] > 240 ? 240 : n_gaps[0];
            for (size_t k = 0; k < n_gaps[0]; k++)
                gaps[0][k] = gaps[0][N_BEFORE * N_DECODING - N_DECODING - n_gaps[0] + k];
            begun = bench_now();
            if (submit(h, prompt, n_long, 1, &id))
                return 1;
        }
    }
    if (!n_gaps[0] || !n_gaps[1])
        return fail("nothing decoded beside the prompt");
    for (int k = 0; k < 2; k++)
        bench_sort(gaps[k], n_gaps[k]);
    printf("%u,%.1f,%.1f,%.1f,%.1f,%.2f\n", n_long, gaps[0][n_gaps[0] / 2] * 1e3,
           gaps[1][n_gaps[1] / 2] * 1e3, gaps[1][n_gaps[1] * 9 / 10] * 1e3,
           gaps[1][n_gaps[1] - 1] * 1e3, seconds);
    cb_close(h);
    free(prompt);
    return 0;
}
