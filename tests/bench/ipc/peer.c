#include "tests/bench/ipc/peer.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct server {
    void (*serve)(void *shared, uint32_t lane);
    void *shared;
    uint32_t lane;
};

void peer_fail(const char *what)
{
    fprintf(stderr, "bench_ipc: %s: %s\n", what, strerror(errno));
    exit(1);
}

void peer_bind(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        peer_fail("sched_setaffinity");
}

void peer_free(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++)
        CPU_SET(i, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        peer_fail("sched_setaffinity");
}

pid_t peer_fork(int core)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        peer_fail("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        if (core >= 0)
            peer_bind(core);
    }
    return pid;
}

void peer_end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

void *peer_share(size_t bytes)
{
    void *p =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED)
        peer_fail("mmap");
    return p;
}

static void *serve_lane(void *arg)
{
    const struct server *s = arg;
    s->serve(s->shared, s->lane);
    return NULL;
}

void peer_serve(uint32_t n_lanes, void (*serve)(void *shared, uint32_t lane), void *shared)
{
    struct server *servers = calloc(n_lanes, sizeof *servers);
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (uint32_t i = 0; servers && i < n_lanes; i++) {
        servers[i] = (struct server){serve, shared, i};
        if (pthread_create(&thread, &small, serve_lane, &servers[i]))
            peer_fail("pthread_create");
    }
    for (;;)
        pause();
}
