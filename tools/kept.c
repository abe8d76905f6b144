/* The whole file is read once, line by line; of each line a hash stays. */
#include "tools/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tools/answer.h"

#define INDEX_MAX ((json_int_t)1 << 32)

uint64_t kept_hash(const char *line, size_t bytes)
{
    while (bytes && (line[bytes - 1] == '\n' || line[bytes - 1] == '\r'))
        bytes--;
    uint64_t hash = XXH3_64bits(line, bytes);
    return hash ? hash : 1;
}

static bool no_memory(const struct kept *k)
{
    cbctl_complain(k->ctl, "out of memory");
    return false;
}

static bool remember(struct kept *k, size_t idx, uint64_t hash)
{
    if (idx >= k->n_room) {
        size_t room = k->n_room ? k->n_room : 1024;
        while (room <= idx)
            room *= 2;
        uint64_t *larger = realloc(k->hashes, room * sizeof *larger);
        if (!larger)
            return no_memory(k);
        memset(larger + k->n_room, 0, (room - k->n_room) * sizeof *larger);
        k->hashes = larger;
        k->n_room = room;
    }
    k->n += !k->hashes[idx];
    k->hashes[idx] = hash;
    return true;
}

/* 1; 0: it is no answer; -1 after a complaint. */
static int read_line(struct kept *k, const char *line, size_t bytes)
{
    json_t *o = json_loadb(line, bytes, JSON_ALLOW_NUL, NULL);
    const json_t *index = json_object_get(o, "index");
    const char *hash = json_string_value(json_object_get(o, "line_hash"));
    int r = 0;

    if (json_is_integer(index) && json_integer_value(index) >= 0 &&
        json_integer_value(index) < INDEX_MAX && hash && strlen(hash) == 16 &&
        strspn(hash, "0123456789abcdef") == 16) {
        r = remember(k, (size_t)json_integer_value(index), strtoull(hash, NULL, 16)) ? 1 : -1;
        k->n_failed += json_object_get(o, "error") != NULL;
    }
    json_decref(o);
    return r;
}

/* The beginning of an answer, without its end. Whatever else has no end is somebody's file. */
static bool is_torn(const char *line, size_t bytes)
{
    static const char *const begins[] = {"{\"error\":", "{\"finish_reason\":", "{\"index\":"};

    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        size_t n = strlen(begins[i]);

        if (line[bytes - 1] != '\n' && memcmp(line, begins[i], bytes < n ? bytes : n) == 0)
            return true;
    }
    return false;
}

/* Reads all lines; *endp gets where the last whole one ends. */
static bool read_all(struct kept *k, off_t *endp)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t n;
    bool ok = true;

    *endp = 0;
    while (ok && (n = getline(&line, &room, k->file)) > 0) {
        int r = line[n - 1] == '\n' ? read_line(k, line, (size_t)n) : 0;

        number++;
        *endp += r > 0 ? n : 0;
        ok = r > 0 || (!r && is_torn(line, (size_t)n)); /* which only the last one can be */
        if (!ok && !r)
            cbctl_complain(k->ctl, "%s:%zu is no answer of this command; give another file",
                           k->path, number);
    }
    if (ok && ferror(k->file)) {
        cbctl_complain(k->ctl, "can't read %s: %s", k->path, strerror(errno));
        ok = false;
    }
    free(line);
    return ok;
}

bool kept_open(struct kept *k, const struct cbctl *ctl, const char *path)
{
    struct stat st;
    off_t end = 0;
    int fd;

    *k = (struct kept){.ctl = ctl, .path = path, .file = stdout};
    if (!path)
        return true;
    fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    k->file = fd < 0 ? NULL : fdopen(fd, "a+");
    if (!k->file || fstat(fd, &st)) {
        cbctl_complain(ctl, "can't open %s: %s", path, strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode))
        return true;
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        cbctl_complain(ctl, "%s: another process writes to it", path);
        return false;
    }
    rewind(k->file);
    if (!read_all(k, &end))
        return false;
    if (end < st.st_size && ftruncate(fd, end)) {
        cbctl_complain(ctl, "can't cut the torn last line of %s: %s", path, strerror(errno));
        return false;
    }
    clearerr(k->file);
    fseeko(k->file, 0, SEEK_END);
    return true;
}

bool kept_close(struct kept *k)
{
    bool ok = !k->file || !ferror(k->file);

    if (k->file && k->file != stdout)
        ok &= fclose(k->file) == 0;
    free(k->hashes);
    k->file = NULL;
    k->hashes = NULL;
    if (!ok && k->path) /* standard output is everybody's: cbctl.c says so */
        cbctl_complain(k->ctl, "can't write %s: %s", k->path, strerror(errno));
    return ok;
}

enum kept_answer kept_find(const struct kept *k, size_t idx, uint64_t hash)
{
    if (idx >= k->n_room || !k->hashes[idx])
        return KEPT_NONE;
    return k->hashes[idx] == hash ? KEPT_ANSWERED : KEPT_OTHERS;
}

bool kept_has_more(const struct kept *k, size_t n_prompts)
{
    for (size_t i = n_prompts; i < k->n_room; i++)
        if (k->hashes[i])
            return true;
    return false;
}

bool kept_add(struct kept *k, size_t idx, uint64_t hash, json_t *answer)
{
    char text[24];

    snprintf(text, sizeof text, "%016" PRIx64, hash);
    json_object_set_new(answer, "index", json_integer((json_int_t)idx));
    json_object_set_new(answer, "line_hash", json_string(text));
    answer_print(answer, k->file);
    json_decref(answer);
    return !ferror(k->file);
}
