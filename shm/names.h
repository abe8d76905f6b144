/* shm/names.h - segments under names, for peers that can't be sent descriptors.
 *
 *   BASE.up BASE.down   a lane's segments, POSIX shared memory
 *   BASE.bell           its bell, a POSIX named semaphore
 *   BASE.vocab          the vocabulary, POSIX shared memory
 *
 * BASE is /cbd.UID.INSTANCE.<128 random bits>, made exclusively: nobody can know the name before.
 * Once the first part is there, others can see it, so all parts are made before anything is done
 * with one, and if somebody was faster still, under another name. Files are 0600; a client that is
 * another user gets an entry of its own in their access lists, on DOWN and the vocabulary for
 * reading only, when all else is done.
 *
 * What has a name can't be sealed, so whoever may write it can cut it short: whoever maps it guards
 * against SIGBUS. That is why names are for users whom the operator trusts.
 *
 * A lane's names are gone once both sides have it mapped. Until then the maker holds a flock on the
 * file that was made first and goes last: what has none was left by a process that was killed. */
#ifndef CB_SHM_NAMES_H
#define CB_SHM_NAMES_H

#include "shm/segment.h"

#define CB_NAMES_UIDS_MAX 64 /* whom one name is opened to */
#define CB_NAMES_BASE_MAX 72u

struct cb_names {
    char base[CB_NAMES_BASE_MAX]; /* empty: nothing has a name */
    int lock_fd;
};

enum cb_names_part { CB_NAMES_UP, CB_NAMES_DOWN, CB_NAMES_BELL, CB_NAMES_VOCAB, CB_NAMES_PARTS };

/* ---- the maker's side ------------------------------------------------------------------------ */

/* What a lane under names is to be. */
struct cb_names_lane {
    const char *instance;
    uid_t uid; /* who may open it, besides this process's user */
    size_t up_bytes, down_bytes;
    bool has_bell;
};

/* Makes all parts of a lane; up is mapped for reading, down and bell (unless it has none: then
 * unmapped) for writing. -ENOSPC: /dev/shm is full. On failure there is nothing. Allocates
 * nothing. */
int cb_names_make_lane(struct cb_names *names, const struct cb_names_lane *lane,
                       struct cb_segment *up, struct cb_segment *down, struct cb_segment *bell,
                       struct cb_why *why);

/* Makes the vocabulary: `bytes` from data, which n `uids`, CB_NAMES_UIDS_MAX at most, may read. */
int cb_names_make_vocab(struct cb_names *names, const char *instance, const uid_t *uids, size_t n,
                        const void *data, size_t bytes, struct cb_why *why);

/* Takes the names away; mappings stay. Fine if there are none, also on one that is zeroed. */
void cb_names_unlink(struct cb_names *names);

/* Takes away what killed processes of this user and instance left. Uses the heap. */
void cb_names_sweep(const char *instance);

/* Bytes that are free in /dev/shm; 0 if there is none. */
uint64_t cb_names_room(void);

/* ---- the peer's side ------------------------------------------------------------------------- */

/* Opens a part for cb_segment_map. It must belong to `owner` or root, or nobody: (uid_t)-1: to
 * anyone. The descriptor, or -errno. */
int cb_names_open(const char *base, enum cb_names_part part, bool writable, uid_t owner,
                  struct cb_why *why);

#endif
