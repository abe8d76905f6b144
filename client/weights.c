/* Other weights for a daemon that runs. It makes the memory, and its answer carries the descriptor;
 * this side writes the file there, hashes what it writes, and says the hash. Nothing is mapped, so the
 * daemon can seal it at once. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* so that the library needs no other one */
#include <xxhash.h>

#include "client/command.h"
#include "client/internal.h"

#define PIECE_BYTES ((size_t)1 << 20)

/* The text after "key":, or NULL. */
static const char *value_of(const struct cb_command_answer *a, const char *key)
{
    char quoted[40];
    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    const char *at = strstr(a->text, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

static uint64_t number_of(const struct cb_command_answer *a, const char *key)
{
    const char *at = value_of(a, key);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* The daemon's own words, which say what was wrong and what to do. */
static int fail_as_told(const struct cb_command_answer *a, int status)
{
    char words[512];
    const char *at = value_of(a, "error");
    size_t n = 0;
    if (!at || *at != '"')
        return cb_fail(status);
    for (at++; *at && *at != '"' && n < sizeof(words) - 1; at++) {
        at += *at == '\\' && at[1];
        words[n++] = *at;
    }
    words[n] = 0;
    return cb_fail_at(words, status, 0, 0);
}

/* As cb_command; a refusal is told in the daemon's words. */
static int ask(int sock, const char *command, const char *argument, int wait_ms,
               struct cb_command_answer *a)
{
    int r = cb_command(sock, command, argument, wait_ms, a);
    return a->status ? fail_as_told(a, r) : r;
}

struct loading {
    int file, staging;
    uint64_t bytes, done;
    cb_load_progress_fn *progress;
    void *arg;
    char hash[33];
};

static int write_all(const struct loading *l, const char *piece, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t wrote = pwrite(l->staging, piece + at, n - at, (off_t)(l->done + at));
        if (wrote < 0 && errno != EINTR)
            return cb_fail_errno("the daemon's memory for the file", errno);
        at += wrote > 0 ? (size_t)wrote : 0;
    }
    return 0;
}

/* The whole file, and its hash. */
static int copy(struct loading *l, char *piece, XXH3_state_t *state)
{
    XXH3_128bits_reset(state);
    while (l->done < l->bytes) {
        uint64_t left = l->bytes - l->done;
        ssize_t n = pread(l->file, piece, left < PIECE_BYTES ? left : PIECE_BYTES, (off_t)l->done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return cb_fail_errno("the file", errno);
        if (n == 0)
            return cb_fail_at("the file became shorter while it was read", CB_INVALID, 0, 0);
        XXH3_128bits_update(state, piece, (size_t)n);
        int r = write_all(l, piece, (size_t)n);
        if (r)
            return r;
        l->done += (uint64_t)n;
        if (l->progress)
            l->progress(l->arg, l->done, l->bytes);
    }
    XXH128_hash_t h = XXH3_128bits_digest(state);
    snprintf(l->hash, sizeof(l->hash), "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64,
             (uint64_t)h.low64);
    return 0;
}

static int fill(struct loading *l)
{
    char *piece = malloc(PIECE_BYTES);
    XXH3_state_t *state = XXH3_createState();
    int r = piece && state ? copy(l, piece, state) : cb_fail(CB_NO_MEMORY);
    XXH3_freeState(state);
    free(piece);
    return r;
}

static int load(int sock, struct loading *l, struct cb_loaded *loaded)
{
    char size[24];
    struct cb_command_answer a;
    snprintf(size, sizeof(size), "%" PRIu64, l->bytes);
    int r = ask(sock, "stage-weights", size, CB_COMMAND_MS, &a);
    l->staging = a.fd;
    if (!r && l->staging < 0)
        r = cb_fail_at("the daemon sent no memory for the file", CB_BAD_RECORD, 0, 0);
    if (!r)
        r = fill(l);
    cb_command_free(&a);
    if (r)
        return r;
    r = ask(sock, "load-weights", l->hash, -1, &a); /* as long as it takes to load them */
    if (!r && loaded) {
        loaded->weight_epoch = (uint32_t)number_of(&a, "weight_epoch");
        loaded->n_restarted = (uint32_t)number_of(&a, "restarted");
        loaded->stall_ms = number_of(&a, "stall_ms");
        loaded->n_steps = number_of(&a, "steps");
        loaded->bytes = l->bytes;
    }
    cb_command_free(&a);
    return r;
}

int cb_load_weights(const struct cb_options *options, const char *path,
                    cb_load_progress_fn *progress, void *arg, struct cb_loaded *loaded)
{
    struct loading l = {.progress = progress, .arg = arg};
    struct cb_options usual;
    struct stat st;
    int r = 0;
    if (loaded)
        memset(loaded, 0, sizeof(*loaded));
    if (!path || (options && options->size != sizeof(*options)))
        return cb_fail(CB_INVALID);
    cb_options_init(&usual);
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    l.file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (l.file < 0)
        return cb_fail_errno(path, errno);
    if (fstat(l.file, &st) < 0)
        r = cb_fail_errno(path, errno);
    else if (!S_ISREG(st.st_mode))
        r = cb_fail_at("weights are read from regular files only", CB_INVALID, 0, 0);
    int sock = r ? -1 : cb_find_socket(options ? options : &usual);
    if (!r && sock < 0)
        r = sock;
    if (!r) {
        l.bytes = (uint64_t)st.st_size;
        r = load(sock, &l, loaded);
    }
    if (sock >= 0)
        close(sock);
    close(l.file);
    return r;
}
