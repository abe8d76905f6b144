/* daemon/control.h - the control socket's records: who gets a lane, and commands of operators.
 *
 * Records are fixed, checked to the last reserved byte, and received without a control buffer. A
 * connection has two seconds from accept to READY or a command. One that carries a descriptor, says
 * READY too early or sends a command on a lane offends; so does any record that makes no sense: two
 * offences close it, a descriptor does at once.
 *
 * What a command means is decided above: control only knows whom to ask. Answers are JSON, sent in
 * pieces as the socket takes them; who finds no buffer free is told CB_BUSY (daemon/replies.h). Loop
 * thread only; nothing allocates after control_new. */
#ifndef CB_DAEMON_CONTROL_H
#define CB_DAEMON_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/buf.h"
#include "daemon/clients.h"

struct control;
struct daemon; /* what commands act on: only handed on here */

enum { CONTROL_LATER = 1 };

/* Answers one command of `who`: an enum cb_status, and the reply a JSON object; or CONTROL_LATER, and
 * control_answer is called when it is complete. Until then `who` is asked nothing more. */
typedef int (*control_command)(struct daemon *d, struct client *who, const char *command,
                               const char *argument, struct buf *reply);

struct control_config {
    control_command command;
    struct daemon *daemon; /* its first argument */
    struct clients *clients;
    struct loop *loop;
    struct log *log;
    struct cb_stats_page *stats;
    int status_fd, vocab_fd; /* passed with WELCOME; stay the caller's */
    uint64_t status_bytes, vocab_bytes;
    const char *status_name;
    const char
        *vocab_name; /* base of its name (shm/names.h); NULL: nobody may have lanes by name */
};

int control_new(struct control **controlp, const struct control_config *config); /* 0 or -errno */
struct control *control_free(struct control *c); /* NULL is fine; returns NULL */

/* Begins to accept on a listening socket, which stays the caller's. 0 or -errno. */
int control_listen(struct control *c, int listen_fd);
/* Serves a socket that is connected already; socket and lease are the control's in any case. */
void control_adopt(struct control *c, int fd, const struct cb_lease *lease);
/* Once before each serve of the loop: whoever gave all the commands of a turn may give more. */
void control_begin_turn(struct control *c, uint64_t now_ns);
/* The reply that a CONTROL_LATER left behind, and its sending. Not if its connection has gone. */
struct buf *control_reply(const struct client *who);
void control_answer(struct control *c, struct client *who, int status);
/* From now on every HELLO is refused with CB_DRAINING. */
void control_refuse_all(struct control *c);

#endif
