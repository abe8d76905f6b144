/* threads.c - many threads share one handle; each waits for its own request only.
 *
 *     threads PROMPT...
 *
 * Each prompt gets a thread, which prints its answer as it comes, a line for each piece. The waits
 * don't take each other's events. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <cbclient.h>

struct job {
    struct cb_handle *h;
    pthread_t thread;
    const char *prompt;
    int number;
    int status; /* 0, or why there is no answer */
};

static void *ask(void *arg)
{
    struct job *job = arg;
    struct cb_request request;
    struct cb_event event;
    const char *text;
    size_t bytes;
    uint64_t id;

    cb_request_init(&request);
    request.text = job->prompt;
    request.max_new_tokens = 24;
    job->status = cb_submit(job->h, &request, &id);
    if (job->status)
        return NULL;
    do {
        job->status = cb_wait(job->h, id, &event, -1);
        if (job->status < 0)
            return NULL;
        if (cb_text(job->h, id, &text, &bytes) > 0)
            printf("[%d] %.*s\n", job->number, (int)bytes, text);
    } while (event.type == CB_EVENT_TOKENS);
    job->status = event.status;
    cb_release(job->h, id);
    return NULL;
}

int main(int argc, char **argv)
{
    char *usual[] = {argv[0], "Once upon a time", "The sea is", "Two and two are", NULL};
    struct cb_handle *h;
    struct job *jobs;
    int bad = 0;

    if (argc < 2) {
        argv = usual;
        argc = 4;
    }
    if (cb_open(&h, NULL)) {
        fprintf(stderr, "cb_open: %s\n", cb_message());
        return 1;
    }
    jobs = calloc((size_t)argc, sizeof(*jobs));
    if (!jobs)
        return 1;
    for (int i = 1; i < argc; i++) {
        jobs[i] = (struct job){.h = h, .prompt = argv[i], .number = i};
        if (pthread_create(&jobs[i].thread, NULL, ask, &jobs[i]))
            return 1;
    }
    for (int i = 1; i < argc; i++) {
        pthread_join(jobs[i].thread, NULL);
        if (jobs[i].status) {
            fprintf(stderr, "[%d] %s\n", i, cb_strerror(jobs[i].status));
            bad = 1;
        }
    }
    free(jobs);
    cb_close(h);
    return bad;
}
