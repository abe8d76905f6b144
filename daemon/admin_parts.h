/* daemon/admin_parts.h - what the files of admin_*.c share. A command fills an object that is open
 * in `reply`, and returns an enum cb_status; or CONTROL_LATER, and whoever answers closes the
 * object. */
#ifndef CB_DAEMON_ADMIN_PARTS_H
#define CB_DAEMON_ADMIN_PARTS_H

#include "daemon/daemon.h"

/* Says why in the reply (NULL: the status's own words); returns the status. */
int admin_fail(struct buf *reply, int status, const char *why);

/* Whether `who` may know of cl's requests, and cancel them. */
bool admin_sees(const struct client *who, const struct client *cl);

/* False, and *cutp, once the reply is nearly full. */
bool admin_has_room(const struct buf *reply, bool *cutp);

typedef int admin_command_fn(struct daemon *d, struct client *who, const char *argument,
                             struct buf *reply);

/* admin_requests.c */
admin_command_fn admin_requests, admin_why, admin_cancel;
/* admin_stop.c */
admin_command_fn admin_pause, admin_resume, admin_drain, admin_stop;
/* admin_weights.c */
admin_command_fn admin_stage_weights, admin_load_weights;

#endif
