/* daemon/base/refuse.h - a refusal: one sentence in the caller's buffer, and a negative errno. */
#ifndef CB_DAEMON_BASE_REFUSE_H
#define CB_DAEMON_BASE_REFUSE_H

#define REFUSE_MESSAGE_MAX 512

/* Writes the sentence to message (REFUSE_MESSAGE_MAX bytes; what is longer is cut) and returns
 * error. */
int refuse(char *message, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
