/* What commands say and show in the same way. */
#include "daemon/admin_parts.h"

#include "shm/status.h"

#define ELEMENT_BYTES 1024 /* more than any element of a list takes */

static const char *status_text(int status)
{
    switch (status) {
#define X(name, number, text) \
    case name:                \
        return text;
        CB_STATUS_TABLE(X)
#undef X
    }
    return "";
}

int admin_fail(struct buf *reply, int status, const char *why)
{
    buf_string(reply, "error", why ? why : status_text(status));
    return status;
}

bool admin_sees(const struct client *who, const struct client *cl)
{
    return who->may_admin || who->lease.uid == cl->lease.uid;
}

bool admin_has_room(const struct buf *reply, bool *cutp)
{
    if (reply->cap - reply->n > 2 * ELEMENT_BYTES)
        return true;
    *cutp = true;
    return false;
}
