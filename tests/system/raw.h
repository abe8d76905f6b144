/* tests/system/raw.h - a client that is not the library: speaks the control socket and maps the
 * lane itself, rightly or wrongly. For members of a crowd and for tests alike: nothing here fails
 * by itself. */
#ifndef CB_TESTS_SYSTEM_RAW_H
#define CB_TESTS_SYSTEM_RAW_H

#include <stdbool.h>

#include "shm/control.h"
#include "shm/segment.h"
#include "tests/system/fixture.h"

struct raw {
    int sock; /* -1: not connected */
    struct cb_welcome welcome;
    struct cb_segment up, down; /* once welcomed; UP writable */
    int fds[2];                 /* of these; -1: not welcomed */
};

/* Connects, and no more. */
bool raw_connect(struct raw *r, const struct system *s);
void raw_close(struct raw *r);
struct cb_hello raw_hello(void);
bool raw_send(struct raw *r, const void *bytes, size_t n);
/* READY, BYE, BELL. */
bool raw_send_plain(struct raw *r, enum cb_record_type type);
/* The next record's type within HANG_MS, the record in *out (CB_RECORD_BYTES); 0: the socket ended;
 * -1: nothing came. WELCOME maps the lane. */
int raw_receive(struct raw *r, void *out);
/* All of the handshake. */
bool raw_open(struct raw *r, const struct system *s);

#endif
