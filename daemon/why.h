/* daemon/why.h - what a request waits for, in a sentence for operators. */
#ifndef CB_DAEMON_WHY_H
#define CB_DAEMON_WHY_H

#include "daemon/daemon.h"

enum { WHY_MAX = 512 };

/* Of a request in the engine; and of those that a lane has not got in yet. */
void why_request(const struct daemon *d, const struct client_slot *s, char words[WHY_MAX]);
void why_lane(const struct daemon *d, const struct client *cl, char words[WHY_MAX]);

#endif
