/* tests/bench/ipc/plot.h - what was measured, as CSV and as a picture. */
#ifndef CB_BENCH_IPC_PLOT_H
#define CB_BENCH_IPC_PLOT_H

#include <stdio.h>

#include "tests/bench/ipc/beside.h"
#include "tests/bench/ipc/load.h"

struct cell {
    const struct way *way;
    uint32_t n_lanes;
    enum beside beside;
    double interval_ns; /* of the open loop */
    struct took closed, open;
};

void plot_csv(FILE *f, const struct cell *cells, uint32_t n);
/* Open loops as SVG: a row a cell, from p50 to p99.9 on a logarithmic axis. */
void plot_svg(FILE *f, const struct cell *cells, uint32_t n);

#endif
