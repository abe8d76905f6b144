/* bench_ipc [-b] [-q] [-l auto|uring|epoll] [-o folder] BUILD: round trips between two processes, on
 * two cores: over our lanes, through a whole cbd with the null model, and over what the system offers
 * instead. With 1, 16 and 256 lanes, alone and beside a bad client; closed loop, and open loop timed
 * from when a round was due. Before that the bars: what ours may cost, as a share of the system's
 * least in the same run. -b: only these; -q: less of all; -o: ipc.csv and ipc.svg too.
 *
 * Exits with 2 if a bar is missed. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/ipc/bars.h"
#include "tests/bench/ipc/peer.h"
#include "tests/bench/ipc/plot.h"

enum { CELLS_MAX = 256 };

struct bench {
    struct place place;
    bool is_quick;
    const char *folder;
    struct cell cells[CELLS_MAX];
    uint32_t n_cells;
};

/* The first two cores that are ours. */
static bool find_cores(struct place *p)
{
    cpu_set_t set;
    int n = 0;
    if (sched_getaffinity(0, sizeof set, &set))
        return false;
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &set))
            *(n++ ? &p->there : &p->here) = i;
    return n == 2;
}

static void measure(struct bench *b, const struct way *way, uint32_t n_lanes, enum beside beside)
{
    struct cell *c = &b->cells[b->n_cells];
    double seconds = b->is_quick ? 0.1 : 0.4;
    struct load load = {.n_max = way->sleeps ? 10000 : 200000, .seconds_max = seconds};
    void *ctx = way->open(&b->place, way, n_lanes);
    if (!ctx) {
        printf("%-20s %4u  %-10s  not to be had: %s\n", way->name, n_lanes, beside_name(beside),
               b->place.why);
        return;
    }
    *c = (struct cell){.way = way, .n_lanes = n_lanes, .beside = beside};
    pid_t other = beside_start(&b->place, beside);
    c->closed = load_run(way, ctx, n_lanes, &load);
    c->interval_ns = load.interval_ns = 2 * c->closed.p50;
    c->open = load_run(way, ctx, n_lanes, &load);
    peer_end(other);
    way->close(ctx);
    printf("%-20s %4u  %-10s %10.2f %10.2f %10.2f %10.2f   %10.2f %10.2f %10.2f %10.2f\n",
           way->name, n_lanes, beside_name(beside), c->closed.p50 / 1e3, c->closed.p99 / 1e3,
           c->closed.p999 / 1e3, c->closed.max / 1e3, c->open.p50 / 1e3, c->open.p99 / 1e3,
           c->open.p999 / 1e3, c->open.max / 1e3);
    fflush(stdout);
    b->n_cells++;
}

static void measure_all(struct bench *b)
{
    static const uint32_t lanes[] = {1, 16, 256};
    printf("round trips, us                             closed p50        p99      p99.9        "
           "max     open p50        p99      p99.9        max\n");
    for (int w = 0; ways[w]; w++) {
        for (int i = 0; i < 3 && lanes[i] <= ways[w]->n_lanes; i++)
            measure(b, ways[w], lanes[i], BESIDE_NOBODY);
        measure(b, ways[w], 1, BESIDE_SPINNER);
        if (!ways[w]->is_ours)
            continue;
        for (int i = 0; i < 3 && lanes[i] <= ways[w]->n_lanes; i++)
            measure(b, ways[w], lanes[i], BESIDE_BAD_CLIENT);
    }
}

static void write_file(const struct bench *b, const char *name,
                       void (*plot)(FILE *f, const struct cell *cells, uint32_t n))
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", b->folder, name);
    FILE *f = fopen(path, "w");
    if (!f)
        peer_fail(path);
    plot(f, b->cells, b->n_cells);
    if (fclose(f))
        peer_fail(path);
}

static void clean_up(const struct place *p)
{
    char command[128];
    if (!p->dir[0])
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", p->dir);
    if (system(command))
        fprintf(stderr, "bench_ipc: %s is left\n", p->dir);
}

int main(int argc, char **argv)
{
    static struct bench b;
    bool only_bars = false;
    int option;
    b.place.loop = "auto";
    while ((option = getopt(argc, argv, "bql:o:x:")) != -1) {
        only_bars |= option == 'b';
        b.is_quick |= option == 'q';
        if (option == 'l')
            b.place.loop = optarg;
        if (option == 'o')
            b.folder = optarg;
        if (option == 'x')
            iceoryx_echo((uint32_t)atoi(optarg));
        if (option == '?')
            return 1;
    }
    if (optind + 1 != argc) {
        fprintf(stderr, "usage: bench_ipc [-b] [-q] [-l auto|uring|epoll] [-o folder] BUILD\n");
        return 1;
    }
    b.place.build = argv[optind];
    if (!find_cores(&b.place)) {
        printf("no two cores: nothing is measured\n");
        return 0;
    }
    peer_bind(b.place.here);
    int n_missed = bars_run(&b.place, b.is_quick ? 3 : 9);
    fflush(stdout);
    if (!only_bars)
        measure_all(&b);
    if (b.folder && !only_bars) {
        write_file(&b, "ipc.csv", plot_csv);
        write_file(&b, "ipc.svg", plot_svg);
    }
    clean_up(&b.place);
    return n_missed ? 2 : 0;
}
