/* bench_context N P T: N requests with prompts of P random ids and T new tokens each, against a
 * running daemon (CBD_RUNTIME_DIR), once. For long prompts, whose first round `cbctl bench` would
 * spend minutes on. CSV without a head:
 *
 *   N,P,T,prefill tok/s,decode tok/s: median,10th percentile,90th percentile
 *
 * Prefill is N * P over the time to the last request's first token. Decode is looked at while all N
 * requests decode, from that token to the first end: N over the time between two tokens of the
 * request that came last. It wants a daemon that prefills first. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/cbclient.h"
#include "tests/bench/measure.h"

enum { FIRST_ID = 10, LAST_ID = 40000 };

static int fail(const char *what)
{
    fprintf(stderr, "bench_context: %s\n", what);
    return 1;
}

static int submit(struct cb_handle *h, uint32_t n, uint32_t *ids, uint32_t n_prompt, uint32_t n_new)
{
    char salt[32]; /* no run finds another's prompts in the cache */
    uint64_t id;

    snprintf(salt, sizeof salt, "context %ld", (long)getpid());

    for (uint32_t i = 0; i < n; i++) {
        struct cb_request r;

        for (uint32_t k = 0; k < n_prompt; k++)
            ids[k] = FIRST_ID + (uint32_t)random() % (LAST_ID - FIRST_ID);
        cb_request_init(&r);
        r.ids = ids;
        r.n_ids = n_prompt;
        r.max_new_tokens = n_new;
        r.flags = CB_IGNORE_EOS;
        r.user = i;
        r.cache_salt = salt;
        if (cb_submit(h, &r, &id))
            return fail(cb_message());
    }
    return 0;
}

/* Fills tokens[n][n_new] with the time each token came. */
static int collect(struct cb_handle *h, uint32_t n, uint32_t n_new, double *tokens)
{
    for (uint32_t n_over = 0; n_over < n;) {
        struct cb_event e;
        char words[256];

        if (cb_wait(h, 0, &e, -1) < 0)
            return fail(cb_message());
        for (size_t k = 0; k < e.n_ids; k++)
            tokens[e.user * n_new + e.first + k] = bench_now();
        if (e.status)
            return fail(cb_explain(e.status, e.detail, words, sizeof words));
        if (e.type == CB_EVENT_TOKENS)
            continue;
        cb_release(h, e.id);
        n_over++;
    }
    return 0;
}

static int report(uint32_t n, uint32_t n_prompt, uint32_t n_new, double start, double *tokens)
{
    double *last = tokens, end = tokens[n_new - 1];
    uint32_t n_gaps = 0;

    for (uint32_t i = 1; i < n; i++) {
        double *row = tokens + (size_t)i * n_new;

        last = row[0] > last[0] ? row : last;
        end = row[n_new - 1] < end ? row[n_new - 1] : end;
    }
    printf("%u,%u,%u,%.1f,", n, n_prompt, n_new, n * (double)n_prompt / (last[0] - start));
    while (n_gaps + 1 < n_new && last[n_gaps + 1] <= end) {
        last[n_gaps] = last[n_gaps + 1] - last[n_gaps];
        n_gaps++;
    }
    if (!n_gaps)
        return fail("the first request ended before the last one's first token");
    bench_sort(last, n_gaps);
    printf("%.1f,%.1f,%.1f\n", n / last[n_gaps / 2], n / last[n_gaps * 9 / 10],
           n / last[n_gaps / 10]);
    return 0;
}

int main(int argc, char **argv)
{
    uint32_t v[3];
    struct cb_options o;
    struct cb_handle *h;
    uint32_t *ids;
    double *tokens, start;
    int r;

    for (int i = 0; i < 3; i++) {
        v[i] = argc == 4 ? (uint32_t)strtoul(argv[1 + i], NULL, 10) : 0;
        if (!v[i])
            return fail("usage: bench_context N P T");
    }
    cb_options_init(&o);
    o.n_slots = v[0];
    o.arena_bytes = (uint64_t)v[0] * v[1] * 4 + (1 << 20);
    o.pool_bytes = (uint64_t)v[0] * v[2] * 4 + (1 << 20);
    o.name = "bench_context";
    ids = malloc(v[1] * sizeof *ids);
    tokens = calloc((size_t)v[0] * v[2], sizeof *tokens);
    if (!ids || !tokens)
        return fail("out of memory");
    if (cb_open(&h, &o))
        return fail(cb_message());
    start = bench_now();
    r = submit(h, v[0], ids, v[1], v[2]);
    if (!r)
        r = collect(h, v[0], v[2], tokens);
    if (!r)
        r = report(v[0], v[1], v[2], start, tokens);
    cb_close(h);
    free(tokens);
    free(ids);
    return r;
}
