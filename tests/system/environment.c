#include "tests/system/environment.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool can(bool is_done, const char *what)
{
    if (!is_done)
        fprintf(stderr, "skipped: %s: %s\n", what, strerror(errno));
    return is_done;
}

bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return done;
}

bool deny(int call, unsigned arg, uint64_t value, int error)
{
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    const struct scmp_arg_cmp when = {arg, SCMP_CMP_EQ, value, 0};
    bool always = arg > 5;
    bool done = filter &&
                seccomp_rule_add_array(filter, SCMP_ACT_ERRNO((uint32_t)error), call, !always,
                                       &when) == 0 &&
                seccomp_load(filter) == 0;
    seccomp_release(filter);
    return can(done, "no filter of system calls here");
}

/* ---- memory control groups ------------------------------------------------------------------- */

/* The directory of this process's memory control group, of either version. */
static bool memory_group_here(char dir[4096], bool *is_v2p)
{
    char line[1024], group[1024] = "", mount[1024] = "";
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        line[strcspn(line, "\n")] = 0;
        if (!path)
            continue;
        bool is_memory = strncmp(kinds, ":memory:", 8) == 0;
        if (is_memory || (!group[0] && kinds[1] == ':')) {
            snprintf(group, sizeof group, "%s", path + 1);
            *is_v2p = !is_memory;
        }
        if (is_memory)
            break;
    }
    if (f)
        fclose(f);
    FILE *mounts = setmntent("/proc/self/mounts", "re");
    for (struct mntent *m; mounts && !mount[0] && (m = getmntent(mounts));)
        if (*is_v2p ? strcmp(m->mnt_type, "cgroup2") == 0
                    : strcmp(m->mnt_type, "cgroup") == 0 && hasmntopt(m, "memory"))
            snprintf(mount, sizeof mount, "%s", m->mnt_dir);
    if (mounts)
        endmntent(mounts);
    snprintf(dir, 4096, "%s%s", mount, group);
    return group[0] && mount[0];
}

static bool write_in(const char *dir, const char *name, const char *text)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return write_text(path, text);
}

bool memory_group_enter(const char *bytes, char *name)
{
    char above[4096], self[16];
    bool is_v2 = false;
    errno = ENOENT;
    if (!can(memory_group_here(above, &is_v2), "no memory control groups here"))
        return false;
    snprintf(self, sizeof self, "%d", (int)getpid());
    if (snprintf(name, 4096, "%s/cb-test-%s", above, self) >= 4096 ||
        !can(mkdir(name, 0755) == 0, "no memory control group of one's own here"))
        return false;
    bool done = write_in(name, is_v2 ? "memory.max" : "memory.limit_in_bytes", bytes) &&
                write_in(name, "cgroup.procs", self);
    if (!can(done, "no limit for a memory control group of one's own here"))
        rmdir(name);
    return done;
}

long memory_group_fails(const char *name)
{
    char path[4200], text[512];
    snprintf(path, sizeof path, "%s/memory.failcnt", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        snprintf(path, sizeof path, "%s/memory.events", name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    const char *max = strstr(text, "\nmax "); /* of memory.events; failcnt is one number */
    return n <= 0 ? -1 : strtol(max ? max + 5 : text, NULL, 10);
}

void memory_group_leave(const char *name)
{
    char above[4096], self[16];
    snprintf(above, sizeof above, "%s", name);
    *strrchr(above, '/') = 0;
    snprintf(self, sizeof self, "%d", (int)getpid());
    cr_expect(write_in(above, "cgroup.procs", self));
    cr_expect_eq(rmdir(name), 0, "%s: %s", name, strerror(errno));
}

/* ---- what has to work in all of them --------------------------------------------------------- */

const struct storm_scale environment_scale = {.seed = 71,
                                              .n_vocab = 49152,
                                              .n_distinct = 16,
                                              .prompt_usual = 30,
                                              .prompt_max = 200,
                                              .new_usual = 20,
                                              .new_max = 60};

void expect_service(const struct system *s)
{
    struct storm st;
    struct crowd c;
    storm_init(&st, &environment_scale);
    storm_answer_all(&st, s);
    struct storm_member member = {.storm = &st, .n_rounds = 2, .cancels = true};
    crowd_init(&c, s);
    for (uint32_t i = 0; i < 6; i++)
        crowd_add(&c, storm_member_run, &member);
    crowd_signal(&c, 0, SIGKILL);
    crowd_join(&c);
    crowd_fini(&c);
    system_settle(s);
    storm_fini(&st);
}

uint64_t service_submit(struct cb_handle *h, uint32_t n_new, uint32_t deadline_ms)
{
    const uint32_t prompt[3] = {5, 6, 7};
    struct cb_request r;
    uint64_t id;
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = n_new;
    r.flags = CB_IGNORE_EOS;
    r.deadline_ms = deadline_ms;
    cr_assert_eq(cb_submit(h, &r, &id), 0, "%s", cb_message());
    return id;
}

uint32_t service_end(struct cb_handle *h, uint64_t id)
{
    struct cb_event event;
    do
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
    while (event.type == CB_EVENT_TOKENS);
    cr_assert_eq(event.type, CB_EVENT_END, "%s", cb_strerror(event.status));
    cr_assert_eq(cb_release(h, id), 0);
    return event.end;
}

void expect_deadlines(const struct system *s)
{
    struct cb_handle *h = system_open(s, NULL);
    cr_expect_eq(service_end(h, service_submit(h, 20, HANG_MS)), CB_END_LENGTH,
                 "a deadline that was far off");
    uint64_t id = service_submit(h, 100000, 100);
    struct cb_event event;
    do
        cr_assert_eq(cb_wait(h, id, &event, HANG_MS), 1, "%s", cb_message());
    while (event.type == CB_EVENT_TOKENS);
    /* The daemon may know beforehand that it can't be made. */
    cr_expect(event.status == CB_TOO_LATE || event.end == CB_END_DEADLINE, "end %d, status %d",
              (int)event.end, event.status);
    cb_close(h);
}

void expects_open(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_options options;
    struct cb_handle *h;
    (void)i;
    cb_options_init(&options);
    int r = system_try_open(c->system, &options, &h);
    member_expect(c, r == *(const int *)arg, "cb_open gives %d: %s", r, cb_message());
    cb_close(h);
}
