/* daemon/staging.h - a file of other weights on its way in: memory that the daemon made, one client
 * fills, and nobody can change any more once it is read.
 *
 * A client sends no descriptor, it gets one: an empty memfd of the size it asked for, which can
 * neither grow nor shrink. It writes there and says what the checksum of all of it is. Then the memory
 * is sealed against writing, and only what the checksum fits is read. One at a time; whoever fills it
 * and goes gives it up. Loop thread only; uses the heap. */
#ifndef CB_DAEMON_STAGING_H
#define CB_DAEMON_STAGING_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/clients.h"

#define STAGING_WHY_MAX 256

struct staging {
    int fd;                      /* -1: nobody fills any                */
    const struct client *client; /* the connection that does, ... */
    uint32_t lane_id;            /* ... whose place may be another's one day */
    uint64_t bytes;
    struct staging_check *check; /* sealed, and its checksum is being computed; else NULL */
};

void staging_init(struct staging *s);
void staging_end(struct staging *s); /* fine if there is none */

/* A new one of so many bytes, at least 1, for the client: 0, or an enum cb_status and why. */
int staging_begin(struct staging *s, const struct client *cl, uint64_t bytes,
                  char why[STAGING_WHY_MAX]);

/* What the client filled is complete, with that XXH3-128 (high, low): 0, and it stays as it is; or
 * an enum cb_status and why: then it is gone, unless the client can still write there: that must stop
 * first. */
int staging_seal(struct staging *s, const struct client *cl, const uint64_t hash[2],
                 char why[STAGING_WHY_MAX]);

enum { STAGING_MORE = 1 };

/* After that, a slice of computing the checksum: 0: it fits; STAGING_MORE; or an enum cb_status and
 * why: then it is gone. */
int staging_check(struct staging *s, char why[STAGING_WHY_MAX]);

/* Ends it if its client is gone. */
void staging_settle(struct staging *s);

#endif
