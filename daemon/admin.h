/* daemon/admin.h - what operators ask: a command and its argument to JSON and a status.
 *
 *   status                 facts of this boot, state, every counter
 *   clients                lanes and connections; of other users only with authority
 *   requests               requests in the engine; likewise
 *   settings               every setting: value, default, bounds, where it came from
 *   set NAME=VALUE         changes a LIVE setting                           (authority)
 *   cancel LANE[:SLOT]     cancels a lane's requests or one; own user's, others' with authority
 *   drain                  as SIGTERM                                       (authority)
 *   stop                   ends at once                                     (authority) */
#ifndef CB_DAEMON_ADMIN_H
#define CB_DAEMON_ADMIN_H

#include "daemon/base/buf.h"

struct client;
struct daemon;

/* Answers one command; the reply is a JSON object, with "error" in it if the enum cb_status that is
 * returned is not CB_OK. */
int admin_command(struct daemon *d, const struct client *who, const char *command,
                  const char *argument, struct buf *reply);

#endif
