/* bench_kernels [-bl] [-r runs] [-t threads] [-i isa] [-o folder]: this machine's limits (-l: only
 * them), then how near each operator and the whole step come to the one that binds: decode by the
 * number of requests, then by the length of their context. Tables for reading; with -o, limits.csv
 * and operators.csv as well.
 *
 * Every figure is the median of a few runs. The points take turns, so that a slow moment of the
 * machine spoils no single one. Shares are of the best that the machine showed. With -b results may depend on the batch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cores.h"
#include "tests/bench/kernels/limits.h"
#include "tests/bench/kernels/steps.h"

enum { RUNS_MAX = 99, LABEL_WIDTH = 10, CELL_WIDTH = 14, STEP = N_OPS };

static const struct point points[] = {
    {false, 1, 128},  {false, 2, 128},  {false, 4, 128},  {false, 8, 128},  {false, 16, 128},
    {false, 32, 128}, {false, 64, 128}, {true, 128, 0},   {false, 1, 1023}, {false, 1, 4095},
    {false, 1, 8191}, {false, 8, 1023}, {false, 8, 4095}, {false, 8, 8191},
};
enum { N_POINTS = sizeof points / sizeof points[0], N_WIDTHS = 8 };

struct bench {
    int n_runs;
    const char *folder;
    struct rate limits[N_LIMITS];
    double seconds[N_POINTS][N_OPS + 1][RUNS_MAX]; /* the last: the step */
    struct rate took[N_POINTS][N_OPS + 1];
};

static FILE *csv_open(const struct bench *b, const char *name)
{
    char path[4096];
    FILE *f;

    if (!b->folder)
        return NULL;
    snprintf(path, sizeof path, "%s/%s", b->folder, name);
    f = fopen(path, "w");
    if (!f) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    return f;
}

static void csv_close(FILE *f)
{
    if (f && fclose(f)) {
        perror("csv");
        exit(1);
    }
}

/* ---- limits ---------------------------------------------------------------------------------- */

static void limits_print(const struct bench *b, uint32_t n_threads)
{
    FILE *csv = csv_open(b, "limits.csv");

    printf("this machine, %u threads   median      min      max\n", n_threads);
    if (csv)
        fprintf(csv, "limit,unit,threads,median,min,max\n");
    for (int l = 0; l < N_LIMITS; l++) {
        double scale = limit_scale(l);
        struct rate r = b->limits[l];

        printf("%14s %-9s %8.1f %8.1f %8.1f\n", limit_name(l), limit_unit(l), r.median * scale,
               r.least * scale, r.most * scale);
        if (csv)
            fprintf(csv, "%s,%s,%u,%.1f,%.1f,%.1f\n", limit_name(l), limit_unit(l), n_threads,
                    r.median * scale, r.least * scale, r.most * scale);
    }
    csv_close(csv);
}

/* Seconds that an operator, or the step, needs at least. */
static double least_seconds(const struct bench *b, int op, const struct point *point)
{
    struct work work;
    double compute, memory, all = 0;

    if (op == STEP) {
        for (int i = 0; i < N_OPS; i++)
            all += least_seconds(b, i, point);
        return all;
    }
    work = op_work(op, point);
    if (work.unit == LIMIT_BF16 && b->limits[LIMIT_BF16].most <= 0)
        work.unit = LIMIT_FMA;
    compute = b->limits[work.unit].most > 0 ? work.macs / b->limits[work.unit].most : 0;
    memory = work.bytes / b->limits[LIMIT_READ].most;
    return compute > memory ? compute : memory;
}

/* ---- operators ------------------------------------------------------------------------------- */

static void points_run(struct bench *b, struct steps *s)
{
    for (int run = -1; run < b->n_runs; run++) { /* the first warms up */
        for (int i = 0; i < N_POINTS; i++) {
            double ops[N_OPS], all = 0;

            steps_run(s, &points[i], ops);
            for (int op = 0; op < N_OPS && run >= 0; op++) {
                b->seconds[i][op][run] = ops[op];
                all += ops[op];
            }
            if (run >= 0)
                b->seconds[i][STEP][run] = all;
        }
    }
    for (int i = 0; i < N_POINTS; i++) {
        for (int op = 0; op <= STEP; op++)
            b->took[i][op] = rate_of(b->seconds[i][op], b->n_runs);
    }
}

static const char *row_name(int op)
{
    return op == STEP ? "step" : op_names[op];
}

/* Points [begin, end) side by side. */
static void points_print(const struct bench *b, int begin, int end, const char *title)
{
    printf("\n%s: ms, and share of the limit that binds\n%*s", title, LABEL_WIDTH, "");
    for (int i = begin; i < end; i++) {
        char head[32];

        if (points[i].prefill)
            snprintf(head, sizeof head, "prefill %u", points[i].n_tokens);
        else
            snprintf(head, sizeof head, "%u at %u", points[i].n_tokens,
                     points[i].n_past + points[i].n_past % 2);
        printf("%*s", CELL_WIDTH, head);
    }
    printf("\n");
    for (int op = 0; op <= STEP; op++) {
        printf("%-*s", LABEL_WIDTH, row_name(op));
        for (int i = begin; i < end; i++) {
            double t = b->took[i][op].median, least = least_seconds(b, op, &points[i]);

            printf("%*.3f", CELL_WIDTH - 5, t * 1e3);
            if (least > 0)
                printf("%4.0f%%", 100 * least / t);
            else
                printf("%5s", "");
        }
        printf("\n");
    }
    printf("%-*s", LABEL_WIDTH, "tok/s");
    for (int i = begin; i < end; i++)
        printf("%*.0f     ", CELL_WIDTH - 5, points[i].n_tokens / b->took[i][STEP].median);
    printf("\n%-*s", LABEL_WIDTH, "min..max");
    for (int i = begin; i < end; i++) {
        char range[32];

        snprintf(range, sizeof range, "%.0f..%.0f", points[i].n_tokens / b->took[i][STEP].most,
                 points[i].n_tokens / b->took[i][STEP].least);
        printf("%*s", CELL_WIDTH, range);
    }
    printf("\n");
}

static void points_write(const struct bench *b)
{
    FILE *csv = csv_open(b, "operators.csv");

    if (!csv)
        return;
    fprintf(csv, "kind,tokens,keys,operator,median_ms,min_ms,max_ms,limit_ms\n");
    for (int i = 0; i < N_POINTS; i++) {
        for (int op = 0; op <= STEP; op++) {
            const struct point *p = &points[i];
            struct rate t = b->took[i][op];

            fprintf(csv, "%s,%u,%u,%s,%.4f,%.4f,%.4f,%.4f\n", p->prefill ? "prefill" : "decode",
                    p->n_tokens, p->prefill ? p->n_tokens : p->n_past + 1, row_name(op),
                    t.median * 1e3, t.least * 1e3, t.most * 1e3, least_seconds(b, op, p) * 1e3);
        }
    }
    csv_close(csv);
}

static int usage(void)
{
    fprintf(stderr, "usage: bench_kernels [-bl] [-r 1..%d] [-t threads] [-i isa] [-o folder]\n",
            RUNS_MAX);
    return 2;
}

int main(int argc, char **argv)
{
    static struct bench b = {.n_runs = 9};
    struct backend_config config = {.n_threads = cores_usable()};
    bool limits_only = false;
    struct backend_caps caps;
    struct steps *steps;
    struct pool *pool;
    int c;

    while ((c = getopt(argc, argv, "blr:t:i:o:")) != -1) {
        if (c == 'b')
            config.batch_variant = true;
        else if (c == 'l')
            limits_only = true;
        else if (c == 'r')
            b.n_runs = atoi(optarg);
        else if (c == 't')
            config.n_threads = (uint32_t)strtoul(optarg, NULL, 10);
        else if (c == 'i')
            config.isa = optarg;
        else if (c == 'o')
            b.folder = optarg;
        else
            return usage();
    }
    if (b.n_runs < 1 || b.n_runs > RUNS_MAX || optind < argc)
        return usage();
    kernels_thread_init();
    if (pool_new(&pool, config.n_threads, 0)) {
        fprintf(stderr, "%u threads can't be had\n", config.n_threads);
        return 1;
    }
    limits_measure(pool, b.limits);
    pool_free(pool);
    limits_print(&b, config.n_threads);
    if (limits_only)
        return 0;

    steps = steps_new(&config, points, N_POINTS);
    steps_caps(steps, &caps);
    points_run(&b, steps);
    steps_free(steps);
    printf("\nisa %s\n", caps.isa);
    if (caps.bf16_tokens)
        printf("products of %u tokens and more are in bf16\n", caps.bf16_tokens);
    points_print(&b, 0, N_WIDTHS, "requests at a context of 128, and prefill");
    points_print(&b, N_WIDTHS, N_POINTS, "contexts");
    points_write(&b);
    return 0;
}
