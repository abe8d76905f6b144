/* daemon/notify.h - tells the manager that started us how we are: the datagrams of sd_notify(3).
 *
 * $NOTIFY_SOCKET says where to; without it nothing is sent. Ready when clients are served, stopping
 * when a drain begins, and, if $WATCHDOG_USEC asks for it, a sign of life in half that time, sent by
 * the loop: a loop that hangs sends none, and the manager starts another daemon. The socket is made
 * at start, for later the sandbox allows none. Nothing here calls the heap or waits. */
#ifndef CB_DAEMON_NOTIFY_H
#define CB_DAEMON_NOTIFY_H

#include <stdint.h>

struct notify {
    int fd;               /* -1: nobody is to be told */
    uint64_t interval_ns; /* between two signs of life; 0: none is wanted */
};

void notify_open(struct notify *n);
void notify_close(struct notify *n);
/* Lines of KEY=VALUE. One that can't be sent is lost: there is nobody else to tell. */
void notify_send(const struct notify *n, const char *text);

#endif
