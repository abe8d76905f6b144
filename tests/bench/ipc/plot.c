/* The picture brings its own background, and a second set of colours for readers who prefer a dark
 * one. */
#include "tests/bench/ipc/plot.h"

#include <math.h>
#include <string.h>

enum { LEFT = 270, TOP = 66, ROW = 17, GAP = 9, WIDTH = 900, PLOT = 600 };
#define US_LEAST 0.1
#define US_MOST  100000.0

static void csv_row(FILE *f, const struct cell *c, const char *loop, double interval_ns,
                    const struct took *t)
{
    fprintf(f, "%s,%u,%s,%s,%.3f,%u,%.3f,%.3f,%.3f,%.3f\n", c->way->name, c->n_lanes,
            beside_name(c->beside), loop, interval_ns / 1e3, t->n, t->p50 / 1e3, t->p99 / 1e3,
            t->p999 / 1e3, t->max / 1e3);
}

void plot_csv(FILE *f, const struct cell *cells, uint32_t n)
{
    fprintf(f, "way,lanes,beside,loop,interval_us,n,p50_us,p99_us,p999_us,max_us\n");
    for (uint32_t i = 0; i < n; i++) {
        csv_row(f, &cells[i], "closed", 0, &cells[i].closed);
        csv_row(f, &cells[i], "open", cells[i].interval_ns, &cells[i].open);
    }
}

static double x_of(double ns)
{
    double us = fmin(fmax(ns / 1e3, US_LEAST), US_MOST);
    return LEFT + PLOT * log10(us / US_LEAST) / log10(US_MOST / US_LEAST);
}

static void head(FILE *f, double height)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" "
            "height=\"%.0f\">\n<style>\n"
            "text { font: 12px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; "
            "fill: #24292f }\n"
            ".title { font-size: 15px; font-weight: 600 } .back { fill: #ffffff; stroke: #d0d7de } "
            ".grid { stroke: #e4e8ec }\n"
            ".ours { color: #0550ae } .others { color: #57606a } .bad { color: #bc4c00 }\n"
            ".line { stroke: currentColor; stroke-width: 2 } .dot { fill: currentColor }\n"
            "@media (prefers-color-scheme: dark) {\n"
            "  text { fill: #e6edf3 } .back { fill: #0d1117; stroke: #30363d } "
            ".grid { stroke: #21262d }\n"
            "  .ours { color: #58a6ff } .others { color: #9198a1 } .bad { color: #f0883e }\n}\n"
            "</style>\n",
            WIDTH, height, WIDTH, height);
    fprintf(f, "<rect class=\"back\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%.0f\"/>\n",
            WIDTH - 1, height - 1);
    fprintf(f, "<text class=\"title\" x=\"16\" y=\"24\">Round trips, open loop at half of what a "
               "closed one reaches</text>\n"
               "<text x=\"16\" y=\"42\">dot: p50, stroke: p99, end of the line: p99.9; in blue: "
               "whole requests of a null model through cbd</text>\n");
}

static void axis(FILE *f, double bottom)
{
    for (double us = US_LEAST; us <= US_MOST * 1.01; us *= 10) {
        double x = x_of(us * 1e3);
        fprintf(f, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%.1f\"/>\n", x, TOP,
                x, bottom);
        if (us < 1000)
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g µs</text>\n", x,
                    bottom + 16, us);
        else
            fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g ms</text>\n", x,
                    bottom + 16, us / 1000);
    }
}

static void row(FILE *f, const struct cell *c, double y)
{
    const struct took *t = &c->open;
    const char *css = c->beside == BESIDE_BAD_CLIENT ? "bad" : c->way->is_ours ? "ours" : "others";
    const char *beside = c->beside == BESIDE_NOBODY ? "" : beside_name(c->beside);
    fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s, %u lane%s%s%s</text>\n",
            LEFT - 10, y + 4, c->way->name, c->n_lanes, c->n_lanes > 1 ? "s" : "",
            *beside ? ", " : "", beside);
    fprintf(f,
            "<g class=\"%s\"><line class=\"line\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
            "<line class=\"line\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>"
            "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/></g>\n",
            css, x_of(t->p50), y, x_of(t->p999), y, x_of(t->p99), y - 5, x_of(t->p99), y + 5,
            x_of(t->p50), y);
}

/* Where the row of a cell is, if the way changes leave a gap. */
static double place_rows(FILE *f, const struct cell *cells, uint32_t n)
{
    double y = TOP + ROW;
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0 && cells[i].way != cells[i - 1].way)
            y += GAP;
        if (f)
            row(f, &cells[i], y);
        y += ROW;
    }
    return y;
}

void plot_svg(FILE *f, const struct cell *cells, uint32_t n)
{
    double bottom = place_rows(NULL, cells, n);
    head(f, bottom + 32);
    axis(f, bottom);
    place_rows(f, cells, n);
    fprintf(f, "</svg>\n");
}
