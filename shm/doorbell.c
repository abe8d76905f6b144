/* The futex is a shared one (not FUTEX_PRIVATE): the key is the file's page, so the daemon's
 * writable and the client's read-only mapping of DOWN meet in the same queue. */
#include "shm/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int cb_doorbell_wait(const cb_atomic32 *bell, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                               .tv_nsec = (long)(timeout_ns % 1000000000u)};

    if (syscall(SYS_futex, bell, FUTEX_WAIT, seen, &timeout, NULL, 0) == 0)
        return 0;
    /* EAGAIN: the word had moved before we slept. EINTR: a signal; the caller decides. */
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

int cb_doorbell_wake(cb_atomic32 *bell)
{
    long n = syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);

    return n < 0 ? -errno : (int)n;
}

/* The count is the first word of glibc's sem_t, and what its sem_wait sleeps on, since 2.21. */
static cb_atomic32 *count_of(void *page)
{
    static_assert(sizeof(sem_t) == 32, "glibc's, of 64 bits");
    return page;
}

void cb_semaphore_init(void *page)
{
    int r = sem_init(page, 1, 0);

    assert(r == 0);
    (void)r;
}

bool cb_semaphore_is_known(void)
{
    sem_t sem;
    int value = -1;

    cb_semaphore_init(&sem);
    (void)cb_semaphore_post(&sem);
    (void)cb_semaphore_post(&sem);
    bool known = sem_getvalue(&sem, &value) == 0 && value == 2 && sem_trywait(&sem) == 0 &&
                 cb_load32(count_of(&sem), CB_RELAXED) == 1;
    sem_destroy(&sem);
    return known;
}

cb_atomic32 *cb_semaphore_post(void *page)
{
    cb_atomic32 *count = count_of(page);

    cb_add32(count, 1, CB_RELAXED);
    return count;
}

void cb_semaphore_empty(void *page)
{
    /* There is one at most; others who can write there could go on for ever. */
    for (int i = 0; i < 16 && sem_trywait(page) == 0; i++)
        ;
}

int cb_semaphore_wait(void *page, uint64_t timeout_ns)
{
    struct timespec until;
    int cancel_state;

    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns;
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    /* No point of thread cancellation, as the others are none. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    int r = sem_clockwait(page, CLOCK_MONOTONIC, &until) == 0 || errno == EINTR ? 0 : -errno;
    pthread_setcancelstate(cancel_state, NULL);
    return r;
}

void cb_record_plain(struct cb_plain_record *record, enum cb_record_type type)
{
    memset(record, 0, sizeof *record);
    record->head.magic = CB_RECORD_MAGIC;
    record->head.type = (uint16_t)type;
}

int cb_doorbell_send(int sock, enum cb_record_type type)
{
    struct cb_plain_record record;

    cb_record_plain(&record, type);
    if (send(sock, &record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 0;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
}
