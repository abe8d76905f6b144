/* tests/daemon/peer.h - a test's own end of a connection to the simulated daemon. */
#ifndef CB_TESTS_DAEMON_PEER_H
#define CB_TESTS_DAEMON_PEER_H

#include "tests/util/sim.h"

struct peer {
    struct sim *sim;
    int sock, death;
    struct cb_welcome welcome;
    struct cb_segment up, down;
    struct cb_lane_client *lc;
    int fds[4]; /* as received */
};

void peer_connect(struct peer *p, struct sim *s, uint32_t uid);
void peer_close(struct peer *p);
/* A good HELLO, to be spoiled. */
struct cb_hello peer_hello(void);
void peer_send(struct peer *p, const void *record, size_t n);
void peer_turn(struct peer *p, int n);
/* Receives one record after some turns: its type, 0 if none came, -1 at the end of the socket. */
int peer_receive(struct peer *p, void *record);
/* The whole handshake with this hello: the lane is live. */
void peer_open(struct peer *p, struct sim *s, uint32_t uid, const struct cb_hello *hello);
/* Sends an admin command; the JSON of the answer in `text`; its status. */
int peer_admin(struct peer *p, const char *command, const char *argument, char *text, size_t n);
/* Submits these ids; the entry may be changed by the caller before. */
void peer_submit(struct peer *p, struct cb_request_entry *e, const uint32_t *ids, uint32_t n);
/* The next result after some turns; false if none came. */
bool peer_result(struct peer *p, struct cb_result_entry *e);

#endif
