/* daemon/takeover.h - how a daemon that has loaded asks the one that serves for its place.
 *
 * Over the control socket, as an operator would: with a question, so that it is known that the first
 * one listens to us while nothing has changed yet; and then with `stop hard`, which writes no end for
 * what runs, since it goes on with us. That it has gone is known by its lock. At start only; errors as in
 * place.h. */
#ifndef CB_DAEMON_TAKEOVER_H
#define CB_DAEMON_TAKEOVER_H

/* Connects to the first one's socket, checks that it is of this user, or that we are root, and asks.
 * 0 and *sockp, the caller's to close: -1 if nobody is there any more. On an error *sockp is -1. */
int takeover_greet(const char *path, int *sockp, char *message);

/* Tells it to stop, and takes its lock. */
int takeover_finish(int sock, int lock_fd, char *message);

#endif
