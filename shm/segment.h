/* shm/segment.h - the memory behind a lane: made by the daemon, mapped by both sides.
 *
 *   UP      memfd, sealed against resizing; the client gets it read-write, the daemon maps it
 *           read-only
 *   DOWN    memfd, mapped read-write by the daemon and then sealed so that nobody, not even root,
 *           can write, map writable or resize it any more; the client gets a read-only descriptor
 *   VOCAB   memfd, sealed against writing and resizing; read-only descriptor
 *   STATUS  POSIX shared memory under a name, for monitors; the daemon holds a flock on it
 *
 * All pages are allocated at creation, so that running out of memory is an error here and never a
 * SIGBUS later. Lanes are never recycled: fresh, zeroed memory for each. Mappings are populated and
 * not inherited by fork(); the client's are also left out of core dumps. Descriptors are
 * close-on-exec.
 *
 * Errors: negative errno, and a sentence that names what ran out and what to change, in a
 * cb_why. */
#ifndef CB_SHM_SEGMENT_H
#define CB_SHM_SEGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cb_segment {
    void *base; /* NULL: not mapped */
    size_t bytes;
};

struct cb_why {
    char text[192]; /* set whenever a call that takes it fails */
};

/* ---- the daemon's side ----------------------------------------------------------------------- */

/* Makes UP, maps it read-only. *fdp, to be passed to the client and closed, is read-write. */
int cb_segment_make_up(struct cb_segment *s, int *fdp, size_t bytes, struct cb_why *why);

/* Makes DOWN, maps it read-write, seals it. *fdp, to be passed and closed, is read-only. */
int cb_segment_make_down(struct cb_segment *s, int *fdp, size_t bytes, struct cb_why *why);

/* Makes an empty memfd named `name` (for /proc only) of `bytes`, mapped read-write, to be filled
 * and then given to cb_segment_seal: VOCAB. */
int cb_segment_make_sealable(struct cb_segment *s, int *fdp, const char *name, size_t bytes,
                             struct cb_why *why);

/* Unmaps it for writing, seals it against any change, maps it read-only, and replaces *fdp by a
 * read-only descriptor. On failure all of it is gone: *fdp is -1, s unmapped. */
int cb_segment_seal(struct cb_segment *s, int *fdp, struct cb_why *why);

/* STATUS. */
#define CB_STATUS_NAME_MAX 48u
struct cb_status_segment {
    struct cb_segment map; /* read-write */
    int lock_fd;           /* holds the flock; -1: none */
    int fd;                /* read-only, to be passed */
    char name[CB_STATUS_NAME_MAX];
};

/* Makes /cbd.UID.INSTANCE.status exclusively, with `mode` (0644 or 0640) and, unless it is -1, the
 * group. A file there that is this uid's and whose flock can be had is left from a dead daemon and
 * is replaced; with anything else there, such as the page of an instance of the same name in
 * another run directory, a random name is taken instead: readers are told the name, by WELCOME and
 * in the run directory. Pages that dead daemons of this uid and instance left under random names
 * are removed. */
int cb_status_segment_make(struct cb_status_segment *s, const char *instance, size_t bytes,
                           mode_t mode, gid_t group, struct cb_why *why);

/* Unlinks the name, unmaps, closes. Fine on one that was never made or is gone already. */
void cb_status_segment_fini(struct cb_status_segment *s);

/* ---- both sides ------------------------------------------------------------------------------ */

/* Maps a descriptor that was received; the file must be at least `bytes` long. */
int cb_segment_map(struct cb_segment *s, int fd, size_t bytes, int writable, struct cb_why *why);

/* Who made a STATUS page. What it says is that user's word and no more. */
struct cb_status_maker {
    uid_t uid;
    bool is_live; /* else it was killed, and left the page. Only of one that is complete: of one in
                     the making this would say the same */
};

/* Opens a STATUS page by name, read-only, and maps all of it. Its owner must be root, this uid or
 * one of n `trusted`: else -EPERM, for others could cut it short under the reader. */
int cb_segment_open_status(struct cb_segment *s, const char *name, const uid_t *trusted, size_t n,
                           struct cb_status_maker *maker, struct cb_why *why);

/* Fine on an unmapped one. */
void cb_segment_unmap(struct cb_segment *s);

/* Private memory of the given size, zeroed, page-aligned, not from the heap: for a lane's
 * record. */
int cb_segment_private(struct cb_segment *s, size_t bytes, struct cb_why *why);

#endif
