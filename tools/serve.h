/* tools/serve.h - GET /metrics over HTTP, on loopback or a unix socket, for `cbctl metrics`.
 *
 * One thread; at most SERVE_CONNECTIONS at once, each closed after its one answer, or when it is
 * silent for SERVE_IDLE_S, or after SERVE_LIFE_S whatever it does. */
#ifndef CB_TOOLS_SERVE_H
#define CB_TOOLS_SERVE_H

#include "tools/complain.h"

enum { SERVE_CONNECTIONS = 32, SERVE_IDLE_S = 5, SERVE_LIFE_S = 20 };

/* `where` is a port (0: any) of 127.0.0.1, or a path with a '/' in it for a unix socket: one that
 * nobody listens at any more is replaced; anything else there is refused and kept. Prints where it
 * listens, then serves until SIGTERM or SIGINT. The exit status. */
int serve(const struct cbctl *ctl, const char *where);

#endif
