/* tools/talk.h - commands over the daemon's control socket, a JSON answer to each. */
#ifndef CB_TOOLS_TALK_H
#define CB_TOOLS_TALK_H

#include <jansson.h>

/* Asks the daemon of `instance` (NULL: default); argument "" if there is none. 0: *replyp is the
 * caller's json_decref. A negative enum cb_status else; then cb_message() says why, or, if the
 * daemon refused the command, *replyp is its answer, with "error" in words. Waits up to 10 s. */
int talk(const char *instance, const char *command, const char *argument, json_t **replyp);

/* The same in two steps, for who wants the connection to last: a socket to close, or a negative enum
 * cb_status; and one command, again and again. */
int talk_open(const char *instance);
int talk_ask(int sock, const char *command, const char *argument, json_t **replyp);

#endif
