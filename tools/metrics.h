/* tools/metrics.h - a look at a daemon as Prometheus text, format 0.0.4.
 *
 * Names follow from the tables of shm/stats_table.h: "cbd_" and the row's name, where "ns" or "us"
 * becomes "seconds" and its value is divided; counters end with "_total". A histogram shows the
 * octaves of its buckets. Each sample has the labels instance and model. */
#ifndef CB_TOOLS_METRICS_H
#define CB_TOOLS_METRICS_H

#include <stdio.h>

#include "tools/watch.h"

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

void metrics_print(FILE *out, const struct watch *w);

#endif
