/* daemon/replies.h - answers to commands, on their way out.
 *
 * An answer is built whole in one of a few buffers and then goes out in pieces, as the socket takes
 * them. While one is on its way, further commands of that connection wait in its socket. A client
 * that takes no piece of its answer for CLIENTS_PATIENCE_NS is closed: or four who do not read
 * would keep every operator from asking anything. Loop thread only; nothing allocates after
 * replies_new. */
#ifndef CB_DAEMON_REPLIES_H
#define CB_DAEMON_REPLIES_H

#include "daemon/base/buf.h"
#include "daemon/clients.h"

struct replies;

struct reply {
    struct client *client; /* NULL: free */
    uint32_t lane_id;      /* the connection it belongs to: an entry is used again */
    int status;            /* enum cb_status */
    int fd;                /* goes with the first piece, and stays its owner's; -1: none */
    struct buf text;
    size_t sent;
};

/* clients outlives it. 0 or -ENOMEM. */
int replies_new(struct replies **repliesp, struct clients *clients);
struct replies *replies_free(struct replies *rs); /* NULL is fine; returns NULL */

/* An empty reply for cl, which is ADMIN: cl->reply. NULL: all are on their way. */
struct reply *replies_take(struct replies *rs, struct client *cl);

/* fd goes to cl with the answer that it is being given, if it is. Must stay open until that is out. */
void replies_give(struct client *cl, int fd);

/* Sends what the socket takes of cl->reply; when all is out, cl->reply is NULL. A client that is
 * gone, or can't be watched, is closed. */
void replies_send(struct replies *rs, struct client *cl);

/* Sends an answer without text, for which there was no buffer. */
void replies_send_status(struct replies *rs, struct client *cl, int status);

#endif
