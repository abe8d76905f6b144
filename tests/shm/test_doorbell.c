#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/lease.h"
#include "shm/segment.h"

/* Whether the process is inside a futex call now. */
static bool is_in_futex(pid_t pid)
{
    char path[64];
    long number = -1;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    f = fopen(path, "r");
    if (f) {
        if (fscanf(f, "%ld", &number) != 1)
            number = -1;
        fclose(f);
    }
    return number == SYS_futex;
}

Test(doorbell, wakes_all_processes_that_map_it_read_only)
{
    struct cb_segment daemon;
    struct cb_why why = {""};
    pid_t children[2];
    int fd, status;

    cr_assert_eq(cb_segment_make_down(&daemon, &fd, 4096, &why), 0, "%s", why.text);
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct cb_segment mine;

            if (cb_segment_map(&mine, fd, 4096, 0, &why))
                _exit(2);
            _exit(cb_doorbell_wait(mine.base, 0, 10000000000ull) != 0);
        }
    }
    /* The word does not move, so only the call can wake them. */
    while (!is_in_futex(children[0]) || !is_in_futex(children[1]))
        usleep(1000);
    cr_assert_eq(cb_doorbell_wake(daemon.base), 2);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(waitpid(children[i], &status, 0), children[i]);
        cr_assert_eq(status, 0);
    }
    cb_segment_unmap(&daemon);
    close(fd);
}

Test(doorbell, does_not_sleep_on_a_word_that_moved_and_ends_in_time)
{
    cb_atomic32 bell;

    cb_store32(&bell, 5, CB_RELAXED);
    cr_assert_eq(cb_doorbell_wait(&bell, 4, 10000000000ull), 0);
    cr_assert_eq(cb_doorbell_wait(&bell, 5, 1000000), -ETIMEDOUT);
}

Test(doorbell, a_full_socket_counts_as_rung_and_a_closed_one_does_not)
{
    struct cb_plain_record record;
    struct pollfd p;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    for (int i = 0; i < 10000; i++)
        cr_assert_eq(cb_doorbell_send(pair[0], CB_RECORD_BELL), 0);
    p = (struct pollfd){.fd = pair[1], .events = POLLIN};
    cr_assert_eq(poll(&p, 1, 0), 1);
    cr_assert_eq(recv(pair[1], &record, sizeof record, 0), CB_RECORD_BYTES);
    cr_assert(record.head.magic == CB_RECORD_MAGIC && record.head.type == CB_RECORD_BELL);
    close(pair[1]);
    signal(SIGPIPE, SIG_DFL);
    cr_assert_eq(cb_doorbell_send(pair[0], CB_RECORD_BELL), -ECONNRESET);
    cr_assert_eq(cb_doorbell_send(pair[0], CB_RECORD_BELL), -EPIPE, "and no SIGPIPE");
    close(pair[0]);
}

/* ---- semaphores ------------------------------------------------------------------------------ */

static void *shared_page(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    cr_assert_neq(page, MAP_FAILED);
    cb_semaphore_init(page);
    return page;
}

/* The sleeper is glibc's own. */
Test(doorbell, a_post_wakes_who_waits_on_a_posix_semaphore)
{
    void *page = shared_page();
    int status;
    pid_t pid = fork();

    cr_assert(cb_semaphore_is_known());
    if (pid == 0)
        _exit(sem_wait(page) != 0);
    while (!is_in_futex(pid))
        usleep(1000);
    cr_assert_eq(cb_doorbell_wake(cb_semaphore_post(page)), 1);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
}

Test(doorbell, a_post_without_a_sleeper_is_kept_until_it_is_taken_away)
{
    void *page = shared_page();

    (void)cb_semaphore_post(page);
    cr_expect_eq(cb_semaphore_wait(page, 10000000000ull), 0);
    (void)cb_semaphore_post(page);
    (void)cb_semaphore_post(page);
    cb_semaphore_empty(page);
    cr_expect_eq(cb_semaphore_wait(page, 1000000), -ETIMEDOUT);
}

/* Behind the count lie how many wait, and what sem_post makes its system call from: with these bytes it
 * sleeps in the kernel, or calls abort. */
Test(doorbell, whatever_a_peer_writes_there_a_post_neither_sleeps_nor_ends, .timeout = 20)
{
    void *page = shared_page();
    uint32_t *words = page;

    for (uint32_t i = 0; i < 512; i++)
        for (uint32_t count = 0; count < 4; count++) {
            words[0] = count == 3 ? UINT32_MAX : count == 2 ? INT32_MAX : count;
            words[1] = i % 2 ? UINT32_MAX : 1;
            words[2] = i;
            words[3] = i;
            cr_assert_eq(cb_doorbell_wake(cb_semaphore_post(page)), 0);
        }
}

Test(lease, knows_who_is_there_and_that_it_died)
{
    struct cb_lease lease;
    struct pollfd p;
    int pair[2], go[2];
    pid_t child;

    /* The child makes the pair's other end its own by connecting. */
    struct sockaddr name;
    socklen_t len = sizeof(sa_family_t);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    char path[108];
    socklen_t path_len = sizeof path;

    name.sa_family = AF_UNIX;
    cr_assert_eq(bind(listener, &name, len), 0);
    cr_assert_eq(listen(listener, 1), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)path, &path_len), 0);
    cr_assert_eq(pipe(go), 0);
    child = fork();
    if (child == 0) {
        char byte;
        int s = socket(AF_UNIX, SOCK_SEQPACKET, 0);

        close(go[1]);
        if (connect(s, (struct sockaddr *)path, path_len))
            _exit(1);
        _exit(read(go[0], &byte, 1) == 1);
    }
    pair[0] = accept(listener, NULL, NULL);
    cr_assert_geq(pair[0], 0);
    cr_assert_eq(cb_lease_take(&lease, pair[0]), 0);
    cr_assert_eq(lease.uid, geteuid());
    cr_assert_eq(lease.pid, child);
    cr_assert(cb_lease_has_group(&lease, pair[0], getegid()));
    cr_assert_not(cb_lease_has_group(&lease, pair[0], 54321));
    cr_assert(cb_lease_alive(&lease));
    close(go[1]);
    if (lease.pidfd >= 0) {
        p = (struct pollfd){.fd = lease.pidfd, .events = POLLIN};
        cr_assert_eq(poll(&p, 1, 10000), 1);
        cr_assert_not(cb_lease_alive(&lease));
    }
    cb_lease_release(&lease);
    cb_lease_release(&lease);
    cr_assert_eq(lease.pidfd, -1);
}
