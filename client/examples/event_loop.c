/* event_loop.c - several prompts inside an epoll loop that has other things to do, with handlers.
 *
 *     event_loop PROMPT...
 *
 * A timer ticks beside the answers, to show that the loop is never blocked. The recipe is
 * serve(). */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cbclient.h>

struct job {
    int number;
    int *n_leftp; /* jobs that have not ended */
};

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cb_message());
    return 1;
}

/* Called by cb_dispatch for each event of the request. */
static void on_event(struct cb_handle *h, const struct cb_event *event, void *arg)
{
    struct job *job = arg;
    const char *text;
    size_t bytes;
    if (cb_text(h, event->id, &text, &bytes) > 0)
        printf("[%d] %.*s\n", job->number, (int)bytes, text);
    if (event->type == CB_EVENT_TOKENS)
        return;
    if (event->status)
        printf("[%d] %s\n", job->number, cb_strerror(event->status));
    --*job->n_leftp; /* CB_AUTO_RELEASE gives the slot back when this returns */
}

static int submit(struct cb_handle *h, const char *prompt, struct job *job)
{
    struct cb_request request;
    uint64_t id;
    cb_request_init(&request);
    request.text = prompt;
    request.max_new_tokens = 24;
    request.flags = CB_AUTO_RELEASE;
    request.handler = on_event;
    request.handler_arg = job;
    return cb_submit(h, &request, &id);
}

/* The recipe: look, arm, look again, and only then sleep. */
static int serve(struct cb_handle *h)
{
    int r = cb_dispatch(h, 0);
    if (r >= 0)
        r = cb_arm(h);
    if (r >= 0)
        r = cb_dispatch(h, 0);
    return r < 0 ? r : 0;
}

static int run(struct cb_handle *h, const int *n_leftp)
{
    struct itimerspec every = {{0, 100000000}, {0, 100000000}};
    int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    struct epoll_event on_results = {.events = EPOLLIN, .data.fd = cb_fd(h)};
    struct epoll_event on_timer = {.events = EPOLLIN, .data.fd = timer};
    uint64_t ticks = 0, n = 0;
    int r;
    timerfd_settime(timer, 0, &every, NULL);
    epoll_ctl(epoll, EPOLL_CTL_ADD, cb_fd(h), &on_results);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &on_timer);
    r = serve(h);
    while (!r && *n_leftp > 0) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) < 1)
            continue;
        if (event.data.fd != timer)
            r = serve(h);
        else if (read(timer, &n, sizeof(n)) == sizeof(n))
            ticks += n;
    }
    fprintf(stderr, "the timer ticked %llu times meanwhile\n", (unsigned long long)ticks);
    close(timer);
    close(epoll);
    return *n_leftp > 0 ? r : 0;
}

int main(int argc, char **argv)
{
    char *usual[] = {argv[0], "Once upon a time", "The sea is", NULL};
    struct cb_options options;
    struct cb_handle *h;
    struct job *jobs;
    int n_left;

    if (argc < 2) {
        argv = usual;
        argc = 3;
    }
    cb_options_init(&options);
    options.kind = CB_KIND_EVENT_LOOP;
    if (cb_open(&h, &options))
        return fail("cb_open");
    n_left = argc - 1;
    jobs = calloc((size_t)argc, sizeof(*jobs));
    if (!jobs)
        return 1;
    for (int i = 1; i < argc; i++) {
        jobs[i] = (struct job){i, &n_left};
        if (submit(h, argv[i], &jobs[i]))
            return fail("cb_submit");
    }
    if (run(h, &n_left))
        return fail("serving");
    cb_close(h);
    free(jobs);
    return 0;
}
