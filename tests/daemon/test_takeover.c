/* Taking a place, from a first daemon that is played by a thread: its answers are what it is told to
 * give, and its lock goes when it consents to stop. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/refuse.h"
#include "daemon/place.h"
#include "daemon/settings.h"
#include "daemon/takeover.h"
#include "shm/control.h"
#include "shm/status.h"

struct first {
    char dir[64], path[96], lock[96];
    int listen_fd, lock_fd;      /* of the first  */
    const int32_t *answers;      /* to each record it hears; no more of them: it hangs up */
    uint32_t n_answers, n_heard; /* of records    */
    pthread_t thread;
};

/* The answer to a question is in two pieces, and only the last one's status counts. */
static void answer(int fd, int32_t status)
{
    struct cb_reply r = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_REPLY}, .status = -9};
    cr_assert_eq(send(fd, &r, sizeof r, MSG_NOSIGNAL), (ssize_t)sizeof r);
    r.status = status;
    r.is_last = 1;
    cr_assert_eq(send(fd, &r, sizeof r, MSG_NOSIGNAL), (ssize_t)sizeof r);
}

static void *serve(void *arg)
{
    struct first *f = arg;
    struct cb_admin record;
    int fd = accept(f->listen_fd, NULL, NULL);
    while (f->n_heard < f->n_answers && recv(fd, &record, sizeof record, 0) > 0) {
        int32_t status = f->answers[f->n_heard++];
        if (status == 0 && !strncmp(record.command, "stop", 4))
            flock(f->lock_fd, LOCK_UN);
        answer(fd, status);
    }
    close(fd);
    return NULL;
}

static void first_init(struct first *f, const int32_t *answers, uint32_t n_answers)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *f = (struct first){.answers = answers, .n_answers = n_answers};
    snprintf(f->dir, sizeof f->dir, "/tmp/cb-takeover-XXXXXX");
    cr_assert_not_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/sock", f->dir);
    snprintf(f->lock, sizeof f->lock, "%s/lock", f->dir);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", f->path);
    f->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(f->listen_fd, (const struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(listen(f->listen_fd, 1), 0);
    f->lock_fd = open(f->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(flock(f->lock_fd, LOCK_EX | LOCK_NB), 0);
    cr_assert_eq(pthread_create(&f->thread, NULL, serve, f), 0);
}

static void first_fini(struct first *f)
{
    pthread_join(f->thread, NULL);
    close(f->lock_fd);
    close(f->listen_fd);
    unlink(f->path);
    unlink(f->lock);
    rmdir(f->dir);
}

Test(takeover, a_first_daemon_that_is_too_busy_to_stop_is_told_again)
{
    static const int32_t answers[] = {0, CB_BUSY, CB_BUSY, 0};
    char message[REFUSE_MESSAGE_MAX] = "";
    struct first f;
    int sock;
    first_init(&f, answers, 4);
    cr_assert_eq(takeover_greet(f.path, &sock, message), 0, "%s", message);
    int lock_fd = open(f.lock, O_RDWR | O_CLOEXEC);
    cr_assert_eq(takeover_finish(sock, lock_fd, message), 0, "%s", message);
    cr_assert_eq(flock(f.lock_fd, LOCK_EX | LOCK_NB), -1, "it has not the lock");
    close(lock_fd);
    close(sock);
    first_fini(&f);
    cr_assert_eq(f.n_heard, 4);
}

Test(takeover, one_that_refuses_is_left_alone)
{
    static const int32_t answers[] = {CB_BUSY, CB_DENIED};
    for (uint32_t i = 0; i < 2; i++) {
        char message[REFUSE_MESSAGE_MAX] = "";
        struct first f;
        int sock = 77;
        first_init(&f, answers + i, 1);
        cr_expect_lt(takeover_greet(f.path, &sock, message), 0);
        cr_expect_eq(sock, -1);
        cr_expect(strstr(message, "the daemon that serves"), "%s", message);
        first_fini(&f);
    }
}

/* ---- the name ------------------------------------------------------------------------------------ */

static ino_t inode_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* A first daemon in a run directory of its own, and a second that has found its lock taken. */
static void second_init(struct place *p, struct settings *set, struct first *f,
                        const int32_t *answers, uint32_t n_answers)
{
    char message[PLACE_MESSAGE_MAX] = "";
    first_init(f, answers, n_answers);
    settings_init(set);
    snprintf(set->runtime_dir, sizeof set->runtime_dir, "/tmp");
    snprintf(set->instance, sizeof set->instance, "%s", f->dir + strlen("/tmp/"));
    set->takeover = true;
    cr_assert_eq(place_take(p, set, (gid_t)-1, message), 0, "%s", message);
    cr_assert(p->is_second);
}

static void second_fini(struct place *p, struct first *f)
{
    char path[128];
    place_release(p);
    snprintf(path, sizeof path, "%s/next", f->dir);
    unlink(path);
    first_fini(f);
}

Test(takeover, one_that_will_not_go_keeps_its_name)
{
    static const int32_t answers[] = {0, CB_BUSY, CB_DENIED};
    char message[PLACE_MESSAGE_MAX] = "";
    struct settings set;
    struct first f;
    struct place p;
    second_init(&p, &set, &f, answers, 3);
    ino_t inode = inode_of(f.path);
    cr_expect_eq(place_take_over(&p, &set, (gid_t)-1, message), -EPERM);
    cr_expect(strstr(message, "refuses"), "%s", message);
    cr_expect_eq(inode_of(f.path), inode, "who comes does not find it");
    second_fini(&p, &f);
    cr_expect_eq(access(f.dir, F_OK), -1, "something is left in %s", f.dir);
}

Test(takeover, one_that_goes_gives_it_up)
{
    static const int32_t answers[] = {0, 0};
    char message[PLACE_MESSAGE_MAX] = "";
    struct settings set;
    struct first f;
    struct place p;
    second_init(&p, &set, &f, answers, 2);
    ino_t inode = inode_of(f.path);
    cr_expect_eq(place_take_over(&p, &set, (gid_t)-1, message), 0, "%s", message);
    cr_expect(inode_of(f.path) && inode_of(f.path) != inode);
    second_fini(&p, &f);
    cr_expect_eq(access(f.dir, F_OK), -1, "something is left in %s", f.dir);
}

/* It may stop for a reason of its own while another is about to take its place: that one may have put
 * its socket there since it looked. */
Test(takeover, who_stops_while_its_place_is_taken_leaves_the_name_alone)
{
    static const int32_t answers[] = {0, 0};
    char message[PLACE_MESSAGE_MAX] = "", path[128];
    struct settings set;
    struct first f;
    struct place p;
    second_init(&p, &set, &f, answers, 2);
    cr_assert_eq(place_take_over(&p, &set, (gid_t)-1, message), 0, "%s", message);
    snprintf(path, sizeof path, "%s/next", f.dir);
    int next = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(flock(next, LOCK_EX | LOCK_NB), 0);
    place_release(&p);
    cr_expect(inode_of(f.path));
    close(next);
    unlink(path);
    first_fini(&f);
}
