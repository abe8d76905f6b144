/* The time left is guessed from the mean rate: what is left is much like what was done. */
#include "client/bar.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "client/internal.h"

#define STEP_NS     100000000u
#define WIDTH_MAX   100u /* a longer one is no easier to read */
#define WIDTH_USUAL 80u
#define SECOND_NS   1000000000u

void cb_bar_init(struct cb_bar *bar, int fd, size_t total, size_t n_before)
{
    *bar = (struct cb_bar){.fd = fd >= 0 && isatty(fd) ? fd : -1,
                           .total = total,
                           .n_before = n_before,
                           .begin_ns = cb_now_ns()};
}

/* "01:05", or "2:01:05". */
static void put_time(char out[24], double s)
{
    unsigned long all = s < 3.6e8 ? (unsigned long)(s + 0.5) : 360000000ul;
    if (all < 3600)
        snprintf(out, 24, "%02lu:%02lu", all / 60, all % 60);
    else
        snprintf(out, 24, "%lu:%02lu:%02lu", all / 3600, all / 60 % 60, all % 60);
}

char *cb_bar_text(const struct cb_bar *bar, size_t n, size_t n_failed, uint64_t elapsed_ns,
                  unsigned width, char out[CB_BAR_BYTES])
{
    double s = (double)elapsed_ns / SECOND_NS, rate = s > 0 ? (double)(n - bar->n_before) / s : 0;
    char elapsed[24], left[24] = "?", failed[32] = "", head[16] = "", tail[160];
    put_time(elapsed, s);
    if (rate > 0 && bar->total >= n)
        put_time(left, (double)(bar->total - n) / rate);
    if (n_failed)
        snprintf(failed, sizeof(failed), ", %zu failed", n_failed);
    if (!bar->total) {
        snprintf(out, CB_BAR_BYTES, "%zu [%s, %.1f/s%s]", n, elapsed, rate, failed);
        return out;
    }
    snprintf(head, sizeof(head), "%3.0f%%|", 100.0 * (double)n / (double)bar->total);
    snprintf(tail, sizeof(tail), "| %zu/%zu [%s<%s, %.1f/s%s]", n, bar->total, elapsed, left, rate,
             failed);
    size_t used = strlen(head) + strlen(tail), room = width > WIDTH_MAX ? WIDTH_MAX : width;
    size_t cells = room > used ? room - used : 0, full = cells * n / bar->total;
    memcpy(out, head, strlen(head));
    memset(out + strlen(head), ' ', cells);
    memset(out + strlen(head), '#', full < cells ? full : cells);
    strcpy(out + strlen(head) + cells, tail);
    if (strlen(out) > width)
        out[width] = 0;
    return out;
}

void cb_bar_show(struct cb_bar *bar, size_t n, size_t n_failed, bool always)
{
    struct winsize size;
    char text[CB_BAR_BYTES], line[CB_BAR_BYTES + 8];
    uint64_t now = bar->fd < 0 ? 0 : cb_now_ns();
    if (bar->fd < 0 || (!always && now - bar->shown_ns < STEP_NS))
        return;
    bar->shown_ns = now;
    if (ioctl(bar->fd, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        size.ws_col = WIDTH_USUAL;
    /* One column less, for some terminals begin a new line after the last. */
    cb_bar_text(bar, n, n_failed, now - bar->begin_ns, size.ws_col - 1u, text);
    int bytes = snprintf(line, sizeof(line), "\r%s\033[K", text);
    if (write(bar->fd, line, (size_t)bytes) < 0)
        bar->fd = -1;
}

void cb_bar_end(struct cb_bar *bar, size_t n, size_t n_failed)
{
    cb_bar_show(bar, n, n_failed, true);
    if (bar->fd >= 0 && write(bar->fd, "\n", 1) < 0)
        bar->fd = -1;
}
