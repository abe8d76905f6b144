/* daemon/admin.h - what operators ask: a command and its argument to JSON and a status.
 *
 * On top of the daemon, whose parts it reads and whose verbs it calls; nothing below knows it. Main
 * hands admin_command to the daemon, and the control socket calls it. What the daemon is and counts
 * needs no command: that is in the STATUS page.
 *
 *   clients                lanes and connections; of other users only with authority
 *   requests               requests in the engine; likewise
 *   why LANE[:SLOT]        what a request waits for, or those a lane has not got in; likewise
 *   settings               every setting: value, default, bounds, where it came from
 *   set NAME=VALUE         changes a LIVE setting                           (authority)
 *   cancel LANE[:SLOT]     cancels a lane's requests or one; own user's, others' with authority
 *   pause                  no step runs until a resume                      (authority)
 *   pause hold             ... as long as the connection lasts              (authority)
 *   resume                 ends the connection's pause, or one that was left (authority)
 *   resume all             ends all of them                                 (authority)
 *   stage-weights BYTES    memory for a file of other weights comes with the answer (authority)
 *   load-weights XXH3      it was filled, and has that checksum: loads it   (authority)
 *   drain, stop            no new requests; ends when the others have       (authority)
 *   stop hard              ends at once                                     (authority) */
#ifndef CB_DAEMON_ADMIN_H
#define CB_DAEMON_ADMIN_H

#include "daemon/daemon.h"

/* A control_command; the reply is a JSON object, with "error" in it if the enum cb_status that is
 * returned is not CB_OK. */
int admin_command(struct daemon *d, struct client *who, const char *command, const char *argument,
                  struct buf *reply);

#endif
