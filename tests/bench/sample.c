/* What drawing costs: the operator `sample` over rows of random logits, as wide as small and large
 * vocabularies are. CSV: of a call for all rows, median, least and most, in microseconds.
 *
 *     bench_sample [threads]    2 by default
 *
 * Rows come in fresh for each call, as they come from the head. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/philox.h"
#include "tests/bench/measure.h"

enum { N_RUNS = 21, N_ROWS_MAX = 32, N_HISTORY = 1000 };

/* What a request of a moderate length asks for: penalties see its ids. */
static const struct sample_program penalties = {
    .typical_p = 1, .repetition_penalty = 1.1f, .frequency_penalty = 0.5f, .no_repeat_ngram = 3};
static const struct sample_program min_p = {
    .min_p = 0.05f, .typical_p = 1, .repetition_penalty = 1};
static const struct sample_program typical = {.typical_p = 0.9f, .repetition_penalty = 1};
static uint32_t history[N_HISTORY];

static const struct {
    const char *name;
    struct sample_params params;
} cases[] = {
    {"temperature", {.temperature = 0.8f, .top_p = 1}},
    {"temperature top_k 50", {.temperature = 0.8f, .top_k = 50, .top_p = 1}},
    {"temperature top_p 0.9", {.temperature = 0.8f, .top_p = 0.9f}},
    {"temperature top_k 50 top_p 0.9", {.temperature = 0.8f, .top_k = 50, .top_p = 0.9f}},
    {"temperature min_p 0.05", {.temperature = 0.8f, .top_p = 1, .program = &min_p}},
    {"temperature typical_p 0.9", {.temperature = 0.8f, .top_p = 1, .program = &typical}},
    {"temperature 100 top_p 0.9", {.temperature = 100, .top_p = 0.9f}},
    {"temperature top_k 5000", {.temperature = 1, .top_k = 5000, .top_p = 1}},
    {"penalties of 1000 ids", {.top_p = 1, .program = &penalties}},
    {"20 best log-probabilities", {.top_p = 1, .logprobs = SAMPLE_PROCESSED, .n_best = 20}},
};

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* Like a language model's: a bulk, of which the best stand out. */
static void fill(float *logits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double u = philox_uniform(1, 0, (uint32_t)i, 0), v = philox_uniform(1, 0, (uint32_t)i, 1);

        logits[i] = (float)(3 * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
    }
}

static void measure(struct stream *s, const float *fresh, struct tensor *logits, uint32_t n_rows,
                    size_t c)
{
    struct head_row rows[N_ROWS_MAX] = {{0}};
    struct sample_params params[N_ROWS_MAX];
    struct sample samples[N_ROWS_MAX];
    struct sample_best best[N_ROWS_MAX][SAMPLE_BEST_MAX];
    double us[N_RUNS];

    logits->n_rows = n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        params[i] = cases[c].params;
        params[i].seed = i;
        params[i].ids = history;
        params[i].n_ids = N_HISTORY;
        params[i].n_prompt = N_HISTORY / 2;
        params[i].best = best[i];
    }
    for (int run = -2; run < N_RUNS; run++) {
        double began;

        memcpy(logits->data, fresh, n_rows * logits->stride_bytes);
        began = bench_now();
        s->ops->sample(s, samples, logits, rows, params, n_rows);
        if (run >= 0)
            us[run] = (bench_now() - began) * 1e6;
    }
    bench_sort(us, N_RUNS);
    printf("%u,%u,%s,%.1f,%.1f,%.1f\n", logits->n_cols, n_rows, cases[c].name, us[N_RUNS / 2],
           us[0], us[N_RUNS - 1]);
}

static void measure_vocab(struct backend *b, uint32_t n_vocab)
{
    const struct stream_shape shape = {16, 16, N_ROWS_MAX, 64, n_vocab, 1, 64, 64};
    struct tensor logits = {.dtype = DTYPE_F32, .n_cols = n_vocab};
    struct stream *s;
    float *fresh;

    logits.stride_bytes = (n_vocab * sizeof(float) + 63) / 64 * 64;
    fresh = malloc(N_ROWS_MAX * logits.stride_bytes);
    if (!fresh || backend_cpu.stream_new(b, &s, &shape) ||
        backend_cpu.buffer_new(b, &logits.data, N_ROWS_MAX * logits.stride_bytes, NULL))
        fail("out of memory");
    fill(fresh, N_ROWS_MAX * logits.stride_bytes / sizeof(float));
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        measure(s, fresh, &logits, 1, c);
        measure(s, fresh, &logits, N_ROWS_MAX, c);
    }
    backend_cpu.buffer_free(b, logits.data);
    backend_cpu.stream_free(s);
    free(fresh);
}

int main(int argc, char **argv)
{
    const struct backend_config config = {.n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 2};
    const char *why = "the backend can't be opened";
    struct backend *b;

    kernels_thread_init();
    if (backend_cpu.open(&b, &config, &why))
        fail(why);
    for (uint32_t i = 0; i < N_HISTORY; i++)
        history[i] = i * i * 7 % 40000;
    printf("vocabulary,rows,parameters,us,us_min,us_max\n");
    measure_vocab(b, 49152);
    measure_vocab(b, 151936);
    backend_cpu.close(b);
    return 0;
}
