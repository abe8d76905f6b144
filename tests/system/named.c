#include "tests/system/named.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/message.h"

bool named_is_root(void)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "skipped: only root can become another user\n");
    return false;
}

/* Names of this test's daemons in /dev/shm that end so. */
int named_count(const struct system *s, const char *end)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0;
    while (d && (e = readdir(d))) {
        size_t bytes = strlen(e->d_name), skip = strlen(end);
        n += strstr(e->d_name, s->instance) && bytes > skip &&
             strcmp(e->d_name + bytes - skip, end) == 0;
    }
    if (d)
        closedir(d);
    return n;
}

int named_count_lanes(const struct system *s)
{
    return named_count(s, ".up") + named_count(s, ".down") + named_count(s, ".bell");
}

void named_await_no_lanes(const struct system *s)
{
    for (uint64_t end = now_ms() + HANG_MS; named_count_lanes(s) && now_ms() < end;)
        nap();
    cr_expect_eq(named_count_lanes(s), 0);
}

static bool posix_map(const char *base, const char *part, int flags, size_t bytes, void **p)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", base, part);
    int fd = shm_open(name, flags, 0);
    *p = fd < 0 ? MAP_FAILED
                : mmap(NULL, bytes, flags == O_RDWR ? PROT_READ | PROT_WRITE : PROT_READ,
                       MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return *p != MAP_FAILED;
}

bool posix_greet(struct posix_client *p, const struct system *s)
{
    struct cb_hello hello = raw_hello();
    _Alignas(8) char record[CB_RECORD_BYTES];
    memset(p, 0, sizeof *p);
    hello.features = CB_FEATURE_NAMED;
    snprintf(hello.libc, sizeof hello.libc, "glibc-%s", gnu_get_libc_version());
    if (!raw_connect(&p->raw, s) || !raw_send(&p->raw, &hello, sizeof hello) ||
        raw_receive(&p->raw, record) != CB_RECORD_WELCOME)
        return false;
    memcpy(&p->raw.welcome, record, sizeof p->raw.welcome);
    return raw_receive(&p->raw, &p->names) == CB_RECORD_NAMES;
}

bool posix_open(struct posix_client *p, const struct system *s)
{
    char name[128];
    void *up, *down, *vocab;
    if (!posix_greet(p, s))
        return false;
    const struct cb_geometry *g = &p->raw.welcome.geometry;
    snprintf(name, sizeof name, "%s.bell", p->names.lane);
    p->bell = sem_open(name, 0);
    if (p->bell == SEM_FAILED || !posix_map(p->names.lane, "up", O_RDWR, g->up_bytes, &up) ||
        !posix_map(p->names.lane, "down", O_RDONLY, g->down_bytes, &down) ||
        !posix_map(p->names.vocab, "vocab", O_RDONLY, p->raw.welcome.vocab_bytes, &vocab))
        return false;
    munmap(vocab, p->raw.welcome.vocab_bytes);
    p->raw.up = (struct cb_segment){up, g->up_bytes};
    p->raw.down = (struct cb_segment){down, g->down_bytes};
    void *memory = calloc(1, cb_lane_client_bytes(g));
    return memory && cb_lane_client_init(&p->lc, memory, g, up, down) == 0;
}

void posix_close(struct posix_client *p)
{
    if (p->bell && p->bell != SEM_FAILED)
        sem_close(p->bell);
    raw_close(&p->raw);
    free(p->lc);
}

void posix_submit(struct posix_client *p, uint32_t n)
{
    const uint32_t ids[4] = {11, 12, 13, 14};
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = n;
    e.flags = CB_FLAG_IGNORE_EOS;
    cb_lane_client_write_arena(p->lc, 0, ids, sizeof ids);
    (void)cb_lane_client_submit(p->lc, &e);
    raw_send_plain(&p->raw, CB_RECORD_BELL);
}
