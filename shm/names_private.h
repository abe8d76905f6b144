/* shm/names_private.h - for tests of what chance does not bring about. */
#ifndef CB_SHM_NAMES_PRIVATE_H
#define CB_SHM_NAMES_PRIVATE_H

#include "shm/names.h"

/* Takes names->base by making the part that goes last, exclusively, and locking it. -EEXIST: the
 * name is taken; -EAGAIN: it was swept at the same moment. */
int names_take(struct cb_names *names, enum cb_names_part first);

#endif
