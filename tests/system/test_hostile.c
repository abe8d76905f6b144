/* Clients that break the rules, beside one that keeps them: theirs ends, its results stay what they
 * are. */
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/system/raw.h"
#include "tests/system/storm.h"

TestSuite(hostile, .timeout = 120);

static const struct storm_scale scale = {.seed = 51,
                                         .n_vocab = 49152,
                                         .n_distinct = 32,
                                         .prompt_usual = 30,
                                         .prompt_max = 200,
                                         .new_usual = 30,
                                         .new_max = 100};

/* ---- on the socket --------------------------------------------------------------------------- */

static bool is_over(struct raw *r)
{
    _Alignas(8) char record[CB_RECORD_BYTES];
    int type;
    while ((type = raw_receive(r, record)) > 0)
        ;
    return type == 0;
}

/* Sends these bytes first: REFUSED with that status, and the end. */
static void expect_refused(const struct system *s, const void *bytes, size_t n, int status)
{
    _Alignas(8) char record[CB_RECORD_BYTES];
    struct cb_refused refused;
    struct raw r;
    cr_assert(raw_connect(&r, s));
    cr_assert(raw_send(&r, bytes, n));
    cr_assert_eq(raw_receive(&r, record), CB_RECORD_REFUSED);
    memcpy(&refused, record, sizeof refused);
    cr_expect_eq(refused.status, status, "status %d, not %d", refused.status, status);
    cr_expect(is_over(&r));
    raw_close(&r);
}

Test(hostile, a_hello_that_is_none)
{
    struct system s;
    struct cb_hello hello;
    char large[4096];
    memset(large, 0x5a, sizeof large);
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    hello = raw_hello();
    expect_refused(&s, &hello, sizeof hello / 2, CB_BAD_RECORD);
    expect_refused(&s, &hello, 1, CB_BAD_RECORD);
    expect_refused(&s, large, sizeof large, CB_BAD_RECORD);
    expect_refused(&s, large, CB_RECORD_BYTES, CB_BAD_RECORD);
    hello.head.magic ^= 1;
    expect_refused(&s, &hello, sizeof hello, CB_BAD_RECORD);
    hello = raw_hello();
    hello.reserved[3] = 1;
    expect_refused(&s, &hello, sizeof hello, CB_BAD_RECORD);
    hello = raw_hello();
    hello.format_min = hello.format_max = CB_FORMAT + 1;
    expect_refused(&s, &hello, sizeof hello, CB_VERSION);
    hello = raw_hello();
    hello.features = CB_FEATURES_MUST;
    expect_refused(&s, &hello, sizeof hello, CB_VERSION);
    cr_expect_geq(system_counter(&s, "lanes_refused"), 2);
    system_settle(&s);
    system_fini(&s);
}

/* After the handshake a few offences are borne, then the lane ends. */
static void offend(struct crowd *c, struct raw *r, const void *bytes, size_t n)
{
    for (int i = 0; i < 64; i++)
        if (!raw_send(r, bytes, n))
            break;
    member_expect(c, is_over(r), "an offender is borne");
}

static void offender(struct crowd *c, uint32_t i, void *arg)
{
    struct cb_hello hello = raw_hello();
    struct raw r;
    char large[4096] = {1};
    (void)arg;
    member_expect(c, raw_open(&r, c->system), "no lane");
    switch (i % 5) {
    case 0:
        offend(c, &r, &hello, sizeof hello); /* a second HELLO, again and again */
        break;
    case 1:
        offend(c, &r, "", 0); /* an empty record is the end */
        break;
    case 2:
        offend(c, &r, large, sizeof large);
        break;
    case 3:
        offend(c, &r, large, CB_RECORD_BYTES);
        break;
    case 4:
        raw_send_plain(&r, CB_RECORD_BYE);
        member_expect(c, is_over(&r), "BYE is ignored");
        break;
    }
    raw_close(&r);
}

/* ---- in the lane ----------------------------------------------------------------------------- */

/* Random bytes into all of UP, for ever; a new lane when the daemon has closed this one. */
static void scribbler(struct crowd *c, uint32_t i, void *arg)
{
    uint64_t random = i;
    struct raw r = {.sock = -1, .fds = {-1, -1}};
    (void)arg;
    while (atomic_load(&c->shared->go) == 0) {
        if (r.sock < 0 && !raw_open(&r, c->system)) {
            raw_close(&r); /* refused for a while after so many broken lanes */
            nap();
            continue;
        }
        volatile uint32_t *up = r.up.base;
        size_t n_words = r.up.bytes / sizeof *up;
        for (int k = 0; k < 256; k++) {
            size_t at = draw(&random, 4) ? draw(&random, 2048) : draw(&random, (uint32_t)n_words);
            up[at % n_words] = draw(&random, 4) ? draw(&random, 16) : draw(&random, UINT32_MAX);
        }
        struct pollfd p = {r.sock, POLLIN, 0};
        if (!raw_send_plain(&r, CB_RECORD_BELL) || (poll(&p, 1, 0) > 0 && p.revents & POLLHUP)) {
            crowd_there(c);
            raw_close(&r);
        }
    }
    raw_close(&r);
}

/* Each of the bad ones is a user of its own: a broken lane keeps its user out for a while. */
static void beside_a_healthy_one(crowd_fn *fn, uint32_t n_bad, uint32_t n_broken)
{
    struct storm st;
    struct system s;
    struct crowd c;
    if (geteuid() != 0) {
        fprintf(stderr, "skipped: only root can become other users\n");
        return;
    }
    storm_init(&st, &scale);
    system_init(&s);
    system_start(&s,
                 SETTINGS("--model", "null", "--socket_mode", "0666", "--socket_trust", "true"));
    storm_answer_all(&st, &s);
    crowd_init(&c, &s);
    struct storm_member member = {.storm = &st, .n_rounds = 20};
    crowd_add(&c, storm_member_run, &member);
    for (uint32_t i = 0; i < n_bad; i++)
        crowd_add_as(&c, 20000 + i, fn, NULL);
    system_await(&s, "lane_broken", n_broken);
    crowd_add(&c, storm_member_run, &member);
    atomic_store(&c.shared->go, 1);
    crowd_join(&c);
    cr_expect_eq(system_counter(&s, "requests_failed"), 0);
    crowd_fini(&c);
    system_settle(&s);
    system_fini(&s);
    storm_fini(&st);
}

Test(hostile, records_after_the_handshake)
{
    beside_a_healthy_one(offender, 10, 6); /* three kinds of five break a rule */
}

Test(hostile, random_bytes_in_the_lane)
{
    beside_a_healthy_one(scribbler, 8, 6);
}

/* No descriptor may come in: where the kernel can, it refuses the send. */
Test(hostile, descriptors_towards_the_daemon)
{
    struct system s;
    struct raw r;
    struct cb_hello hello = raw_hello();
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec piece = {&hello, sizeof hello};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    system_init(&s);
    system_start(&s, SETTINGS("--model", "null"));
    cr_assert(raw_connect(&r, &s));
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(sizeof(int));
    int fd = STDIN_FILENO;
    memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    if (sendmsg(r.sock, &message, MSG_NOSIGNAL) < 0)
        cr_expect_eq(errno, EPERM);
    else
        cr_expect(is_over(&r), "a descriptor was taken");
    raw_close(&r);
    system_settle(&s);
    system_fini(&s);
}
