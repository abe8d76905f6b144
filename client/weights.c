/* Other weights for a daemon that runs. It makes the memory, and its answer carries the descriptor;
 * this side writes the file there, hashes what it writes, and says the hash. Nothing is mapped, so the
 * daemon can seal it at once. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL /* so that the library needs no other one */
#include <xxhash.h>

#include "client/internal.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define ANSWER_MS   10000
#define TEXT_MAX    2048

struct answer {
    char text[TEXT_MAX + 1]; /* JSON; cut, should there be more */
    size_t n;
    int fd; /* that came with it; -1: none */
};

static int send_command(int sock, const char *command, const char *argument)
{
    struct cb_admin record = {.head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
                              .command_bytes = (uint32_t)strlen(command),
                              .argument_bytes = (uint32_t)strlen(argument)};
    memcpy(record.command, command, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    /* Who hung up already may have said why: that is read next. */
    if (send(sock, &record, sizeof(record), MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        return cb_fail(CB_LOST);
    return 0;
}

/* One record, and a descriptor if one came: its bytes; 0 or -1 as recvmsg. */
static ssize_t receive(int sock, struct cb_reply *piece, int *fdp)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = piece, .iov_len = sizeof(*piece)};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)) && *fdp < 0)
        memcpy(fdp, CMSG_DATA(c), sizeof(int));
    return n;
}

/* The text after "key":, or NULL. */
static const char *value_of(const struct answer *a, const char *key)
{
    char quoted[40];
    snprintf(quoted, sizeof(quoted), "\"%s\":", key);
    const char *at = strstr(a->text, quoted);
    if (!at)
        return NULL;
    at += strlen(quoted);
    return at + strspn(at, " ");
}

static uint64_t number_of(const struct answer *a, const char *key)
{
    const char *at = value_of(a, key);
    return at ? strtoull(at, NULL, 10) : 0;
}

/* The daemon's own words, which say what was wrong and what to do. */
static int fail_as_told(const struct answer *a, int status)
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

static int take_piece(struct answer *a, const struct cb_reply *piece)
{
    size_t n = piece->bytes;
    if (piece->head.magic != CB_RECORD_MAGIC || piece->head.type != CB_RECORD_REPLY ||
        n > sizeof(piece->text))
        return cb_fail_at("the daemon's answer", CB_BAD_RECORD, 0, 0);
    if (n > TEXT_MAX - a->n)
        n = TEXT_MAX - a->n;
    memcpy(a->text + a->n, piece->text, n);
    a->n += n;
    a->text[a->n] = 0;
    if (!piece->is_last)
        return 1;
    return piece->status ? fail_as_told(a, piece->status) : 0;
}

/* Asks, and waits for the whole answer: 0 or a status. */
static int ask(int sock, const char *command, const char *argument, int wait_ms, struct answer *a)
{
    int r = send_command(sock, command, argument);
    *a = (struct answer){.fd = -1};
    while (!r) {
        struct pollfd p = {sock, POLLIN, 0};
        struct cb_reply piece;
        int ready = poll(&p, 1, wait_ms);
        if (ready == 0)
            return cb_fail_silent(sock, (unsigned)wait_ms / 1000);
        ssize_t n = ready < 0 ? -1 : receive(sock, &piece, &a->fd);
        /* ECONNRESET, told once: it closed without reading. A refusal may lie behind it. */
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET))
            continue;
        if (n <= 0)
            return cb_fail(CB_LOST);
        if (n == sizeof(piece) && piece.head.magic == CB_RECORD_MAGIC &&
            piece.head.type == CB_RECORD_REFUSED) {
            struct cb_refused refused;
            memcpy(&refused, &piece, sizeof(refused));
            return cb_fail_with(refused.status, refused.detail[0], refused.detail[1]);
        }
        if (n != sizeof(piece))
            return cb_fail_at("the daemon's answer", CB_BAD_RECORD, 0, 0);
        r = take_piece(a, &piece);
        if (r <= 0)
            return r;
        r = 0;
    }
    return r;
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
    struct answer a;
    snprintf(size, sizeof(size), "%" PRIu64, l->bytes);
    int r = ask(sock, "stage-weights", size, ANSWER_MS, &a);
    l->staging = a.fd;
    if (!r && l->staging < 0)
        r = cb_fail_at("the daemon sent no memory for the file", CB_BAD_RECORD, 0, 0);
    if (!r)
        r = fill(l);
    if (l->staging >= 0)
        close(l->staging);
    if (!r) {
        r = ask(sock, "load-weights", l->hash, -1, &a); /* as long as it takes to load them */
        if (a.fd >= 0)
            close(a.fd);
    }
    if (!r && loaded) {
        loaded->weight_epoch = (uint32_t)number_of(&a, "weight_epoch");
        loaded->n_restarted = (uint32_t)number_of(&a, "restarted");
        loaded->stall_ms = number_of(&a, "stall_ms");
        loaded->bytes = l->bytes;
    }
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
