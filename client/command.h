/* client/command.h - a command over the daemon's control socket, and its whole answer.
 *
 * Finding the socket and whom to trust are find.c's. */
#ifndef CB_CLIENT_COMMAND_H
#define CB_CLIENT_COMMAND_H

#include <stddef.h>

#define CB_COMMAND_MS 10000 /* how long an answer to what takes no time may take */

struct cb_command_answer {
    char *text; /* JSON [n], 0-terminated; NULL: nothing came */
    size_t n, room;
    int status; /* of the whole answer: the daemon's, 0 or negative */
    int fd;     /* that came with it; -1: none */
};

/* Asks, and waits up to wait_ms (-1: for ever) for each piece of the answer: 0, the daemon's status,
 * or why there is no whole answer. *answer is to be freed whatever happened. */
int cb_command(int sock, const char *command, const char *argument, int wait_ms,
               struct cb_command_answer *answer);
/* Closes the descriptor too. */
void cb_command_free(struct cb_command_answer *answer);

#endif
