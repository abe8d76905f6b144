/* What the library's calls cost against a running daemon (CBD_RUNTIME_DIR), best with --model null.
 * CSV: call, nanoseconds p50, p99, least. `long` keeps the daemon busy all the while, so none of
 * the calls timed needs to wake it: run under `strace -f -e trace=all` to see that none is a system
 * call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/cbclient.h"

enum { N_SAMPLES = 20000, N_PROMPT = 16 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

struct samples {
    const char *call;
    uint32_t ns[N_SAMPLES];
    uint32_t n;
};

static void add(struct samples *s, uint64_t begin)
{
    if (s->n < N_SAMPLES)
        s->ns[s->n++] = (uint32_t)(now_ns() - begin);
}

static void print(struct samples *s)
{
    qsort(s->ns, s->n, sizeof(s->ns[0]), by_value);
    if (s->n)
        printf("%s,%u,%u,%u,%u\n", s->call, s->n, s->ns[s->n / 2], s->ns[s->n - s->n / 100 - 1],
               s->ns[0]);
}

static int submit(struct cb_handle *h, uint32_t first, uint32_t limit, uint64_t *idp)
{
    uint32_t ids[N_PROMPT];
    struct cb_request r;
    cb_request_init(&r);
    for (uint32_t i = 0; i < N_PROMPT; i++)
        ids[i] = first + i;
    r.ids = ids;
    r.n_ids = N_PROMPT;
    r.max_new_tokens = limit;
    r.flags = CB_IGNORE_EOS;
    return cb_submit(h, &r, idp);
}

int main(void)
{
    static struct samples s_submit = {.call = "submit"}, s_event = {.call = "poll (event)"},
                          s_nothing = {.call = "poll (nothing)"}, s_cancel = {.call = "cancel"},
                          s_release = {.call = "release"}, s_clock = {.call = "clock"};
    struct cb_handle *h;
    struct cb_options o;
    struct cb_info info;
    struct cb_event e;
    uint64_t busy = 0, id, begin;
    cb_options_init(&o);
    o.pool_bytes = 64u << 20;
    o.wait_ms = 2000;
    if (cb_open(&h, &o) || cb_info(h, &info)) {
        fprintf(stderr, "%s\n", cb_message());
        return 1;
    }
    while (s_submit.n < N_SAMPLES) {
        int r;
        if (!busy && submit(h, 7, info.n_context / 2 - N_PROMPT, &busy)) {
            fprintf(stderr, "%s\n", cb_message());
            return 1;
        }
        begin = now_ns();
        add(&s_clock, begin);
        begin = now_ns();
        r = submit(h, s_submit.n % 1000, 4, &id);
        if (!r)
            add(&s_submit, begin);
        if (!r && s_submit.n % 4 == 0) {
            begin = now_ns();
            cb_cancel(h, id);
            add(&s_cancel, begin);
        }
        for (;;) {
            begin = now_ns();
            r = cb_poll(h, &e);
            add(r ? &s_event : &s_nothing, begin);
            if (r <= 0)
                break;
            if (e.type == CB_EVENT_TOKENS)
                continue;
            begin = now_ns();
            cb_release(h, e.id);
            add(&s_release, begin);
            if (e.id == busy)
                busy = 0;
        }
        if (r < 0) {
            fprintf(stderr, "%s\n", cb_message());
            return 1;
        }
    }
    printf("call,n,p50_ns,p99_ns,least_ns\n");
    print(&s_clock);
    print(&s_submit);
    print(&s_event);
    print(&s_nothing);
    print(&s_cancel);
    print(&s_release);
    cb_close(h);
    return 0;
}
