/* The futex is a shared one (not FUTEX_PRIVATE): the key is the file's page, so the daemon's
 * writable and the client's read-only mapping of DOWN meet in the same queue. */
#include "shm/doorbell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
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
