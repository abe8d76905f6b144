/* F_SEAL_WRITE is refused while anybody has the memory mapped for writing, and from then on nobody
 * can map it so, nor write or punch holes: so the bytes that are hashed are the bytes that are
 * loaded. */
#include "daemon/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/model/memory.h"
#include "shm/status.h"

/* Read and hashed in a millisecond or two. */
#define PIECE_BYTES ((size_t)4 << 20)
#define MIB         1048576.0

struct staging_check {
    XXH3_state_t *state;
    void *piece; /* [PIECE_BYTES] */
    uint64_t at, hash[2];
};

static void check_free(struct staging_check *c)
{
    if (!c)
        return;
    XXH3_freeState(c->state);
    free(c->piece);
    free(c);
}

void staging_init(struct staging *s)
{
    *s = (struct staging){.fd = -1};
}

void staging_end(struct staging *s)
{
    if (s->fd >= 0)
        close(s->fd);
    check_free(s->check);
    staging_init(s);
}

static bool is_whose(const struct staging *s, const struct client *cl)
{
    return s->client == cl && s->lane_id == cl->lane_id && cl->state == CLIENT_ADMIN;
}

static int tell(char why[STAGING_WHY_MAX], int status, const char *text, int error)
{
    snprintf(why, STAGING_WHY_MAX, error ? "%s: %s" : "%s", text, strerror(error));
    return status;
}

int staging_begin(struct staging *s, const struct client *cl, uint64_t bytes,
                  char why[STAGING_WHY_MAX])
{
    uint64_t available = memory_available("");
    staging_settle(s);
    if (s->fd >= 0 && !is_whose(s, cl))
        return tell(why, CB_BUSY, "another connection is loading weights", 0);
    staging_end(s);
    if (bytes > available) {
        snprintf(why, STAGING_WHY_MAX, "the file has %.0f MiB, and %.0f MiB of memory are free",
                 (double)bytes / MIB, (double)available / MIB);
        return CB_NO_MEMORY;
    }
    int fd = memfd_create("cb-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return tell(why, CB_SYSTEM, "memfd_create", errno);
    if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK)) {
        int error = errno;
        close(fd);
        return tell(why, CB_SYSTEM, "no memory for the file", error);
    }
    *s = (struct staging){.fd = fd, .client = cl, .lane_id = cl->lane_id, .bytes = bytes};
    return 0;
}

static struct staging_check *check_new(const uint64_t hash[2])
{
    struct staging_check *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (struct staging_check){
        .state = XXH3_createState(), .piece = malloc(PIECE_BYTES), .hash = {hash[0], hash[1]}};
    if (!c->state || !c->piece) {
        check_free(c);
        return NULL;
    }
    XXH3_128bits_reset(c->state);
    return c;
}

int staging_seal(struct staging *s, const struct client *cl, const uint64_t hash[2],
                 char why[STAGING_WHY_MAX])
{
    if (s->fd < 0 || !is_whose(s, cl))
        return tell(why, CB_INVALID, "this connection has no file to load: stage-weights first", 0);
    if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL)) {
        if (errno == EBUSY)
            return tell(why, CB_BUSY, "still mapped for writing: unmap it, then load again", 0);
        int error = errno;
        staging_end(s);
        return tell(why, CB_BAD_WEIGHTS, "the file can't be sealed", error);
    }
    s->check = check_new(hash);
    if (s->check)
        return 0;
    staging_end(s);
    return tell(why, CB_NO_MEMORY, "no memory for its checksum", 0);
}

int staging_check(struct staging *s, char why[STAGING_WHY_MAX])
{
    struct staging_check *c = s->check;
    if (c->at < s->bytes) {
        ssize_t n = pread(s->fd, c->piece, PIECE_BYTES, (off_t)c->at);
        if (n <= 0) {
            int error = n < 0 ? errno : EIO;
            staging_end(s);
            return tell(why, CB_SYSTEM, "the file can't be read", error);
        }
        XXH3_128bits_update(c->state, c->piece, (size_t)n);
        c->at += (uint64_t)n;
        return STAGING_MORE;
    }
    XXH128_hash_t has = XXH3_128bits_digest(c->state);
    if (has.high64 == c->hash[0] && has.low64 == c->hash[1])
        return 0;
    snprintf(why, STAGING_WHY_MAX,
             "the file is torn: its XXH3-128 is %016" PRIx64 "%016" PRIx64 ", %016" PRIx64
             "%016" PRIx64 " was said; load it again",
             (uint64_t)has.high64, (uint64_t)has.low64, c->hash[0], c->hash[1]);
    staging_end(s);
    return CB_BAD_WEIGHTS;
}

void staging_settle(struct staging *s)
{
    if (s->fd >= 0 && !is_whose(s, s->client))
        staging_end(s);
}
