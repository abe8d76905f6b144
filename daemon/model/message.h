/* daemon/model/message.h - the one sentence that says why a model could not be opened.
 *
 * Buffers hold MODEL_MESSAGE_MAX bytes. Names that come from files are foreign bytes and end up on
 * terminals and in logs: whatever is not printable ASCII becomes '?'. */
#ifndef CB_DAEMON_MODEL_MESSAGE_H
#define CB_DAEMON_MODEL_MESSAGE_H

/* Writes the sentence, cut to fit, and returns `error`, so that callers can `return` it. */
int model_refuse(char *message, int error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
