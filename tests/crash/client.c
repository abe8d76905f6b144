/* crash_client DIR INSTANCE N [PID]: plays a scene and dies at the N-th shared store; ends with 0 if
 * there is none. With PID its requests are resumable: midway it kills that daemon, and counts from
 * there. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/crash/points.h"
#include "tests/crash/scene.h"

struct midway {
    uint32_t n;
    pid_t daemon;
};

static void kill_the_daemon(void *arg)
{
    const struct midway *m = arg;
    kill(m->daemon, SIGKILL);
    crash_arm(m->n);
}

int main(int argc, char **argv)
{
    struct midway m = {.n = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0,
                       .daemon = argc > 4 ? (pid_t)strtol(argv[4], NULL, 10) : 0};
    struct scene_play play = {.hang_ms = 60000};
    struct cb_options options;
    struct cb_handle *h;
    char why[256];

    if (argc < 4)
        return 2;
    cb_options_init(&options);
    options.run_dir = argv[1];
    options.instance = argv[2];
    if (m.daemon) {
        options.resume = 1;
        play.is_resumable = true;
        play.midway = kill_the_daemon;
        play.arg = &m;
    } else {
        crash_arm(m.n);
    }
    if (cb_open(&h, &options)) {
        fprintf(stderr, "crash_client: %s\n", cb_message());
        return 1;
    }
    if (!scene_play(h, &play, why)) {
        fprintf(stderr, "crash_client: %s\n", why);
        return 1;
    }
    cb_close(h);
    return 0;
}
