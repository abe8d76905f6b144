/* daemon/named.h - who may have lanes by name, and the vocabulary that they open by name.
 *
 * A lane by name is for a peer that can't be sent descriptors. It lies in /dev/shm, can't be sealed
 * and costs the sandbox some calls: so nobody has one unless the setting named_uids says so. */
#ifndef CB_DAEMON_NAMED_H
#define CB_DAEMON_NAMED_H

#include "daemon/base/log.h"
#include "daemon/base/refuse.h"
#include "daemon/settings.h"
#include "daemon/uids.h"
#include "shm/names.h"

struct named {
    struct uids uids; /* none: there are no lanes by name */
    struct cb_names vocab;
};

/* Takes away what killed daemons of this user and instance left; if somebody may have lanes by name,
 * names the vocabulary. 0, or negative errno and a sentence (REFUSE_MESSAGE_MAX bytes). */
int named_open(struct named *n, const struct settings *set, const struct cb_segment *vocab,
               char *message);
void named_close(struct named *n); /* fine on one that is zeroed, or closed */

/* How many of the usual lanes there is room for; nothing if nobody may have any. */
void named_report(const struct named *n, const struct settings *set, uint32_t n_vocab,
                  uint32_t n_context, struct log *log);

#endif
