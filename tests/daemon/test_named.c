/* Lanes by name from the client's end: who gets one, when its names go, and what it does to the
 * daemon when they are cut short. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/guard.h"
#include "daemon/named.h"
#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

enum { LISTED = 1000 };

static struct sim_report report;

struct scene {
    struct sim *s;
    char instance[32];
};

static struct scene begin(void)
{
    struct scene sc = {.s = sim_new(1, false, &report)};
    cr_assert(sc.s);
    cr_assert_eq(guard_install(), 0);
    snprintf(sc.instance, sizeof sc.instance, "named-%d", (int)getpid());
    snprintf(sc.s->settings.instance, sizeof sc.s->settings.instance, "%s", sc.instance);
    sc.s->daemon->clients->config.named_uids = (struct uids){1, {LISTED}};
    return sc;
}

static int n_names(const struct scene *sc)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    int n = 0;
    cr_assert_not_null(d);
    while ((e = readdir(d)))
        n += strstr(e->d_name, sc->instance) != NULL;
    closedir(d);
    return n;
}

static void end(struct scene *sc)
{
    for (int i = 0; i < 20; i++)
        daemon_turn(sc->s->daemon);
    sim_audit(sc->s);
    cr_assert_str_empty(report.error, "%s", report.error);
    cr_assert_eq(sc->s->daemon->clients->n_connections, 0);
    cr_assert_eq(sc->s->daemon->clients->lane_bytes, 0);
    cr_assert_eq(sc->s->daemon->clients->n_named, 0);
    sim_free(sc->s);
    cr_expect_eq(n_names(sc), 0);
}

static struct cb_hello named_hello(uint32_t wake)
{
    struct cb_hello hello = peer_hello();
    hello.features = CB_FEATURE_NAMED;
    hello.wake = wake;
    snprintf(hello.libc, sizeof hello.libc, "glibc-%s", gnu_get_libc_version());
    return hello;
}

static void refused(struct scene *sc, uint32_t uid, const struct cb_hello *hello, int status,
                    uint32_t limit)
{
    struct peer p;
    struct cb_refused record;
    peer_connect(&p, sc->s, uid);
    peer_send(&p, hello, sizeof *hello);
    cr_assert_eq(peer_receive(&p, &record), CB_RECORD_REFUSED);
    cr_expect_eq(record.status, status, "%d", record.status);
    cr_expect(status != CB_QUOTA || record.detail[0] == limit, "%u", record.detail[0]);
    peer_close(&p);
    cr_expect_eq(n_names(sc), 0);
}

/* A lane and its bell. */
struct named_peer {
    struct peer p;
    struct cb_names_record names;
    struct cb_segment bell;
};

static int open_part(const struct named_peer *n, enum cb_names_part part, bool writable)
{
    struct cb_why why;
    int fd = cb_names_open(n->names.lane, part, writable, geteuid(), &why);
    cr_assert_geq(fd, 0, "%s", why.text);
    return fd;
}

static void map_part(const struct named_peer *n, struct cb_segment *s, enum cb_names_part part,
                     size_t bytes)
{
    struct cb_why why;
    bool writable = part != CB_NAMES_DOWN;
    int fd = open_part(n, part, writable);
    cr_assert_eq(cb_segment_map(s, fd, bytes, writable, &why), 0, "%s", why.text);
    close(fd);
}

/* All but READY. */
static void welcome(struct named_peer *n, struct scene *sc, const struct cb_hello *hello)
{
    struct peer *p = &n->p;
    n->bell = (struct cb_segment){0};
    peer_connect(p, sc->s, LISTED);
    peer_send(p, hello, sizeof *hello);
    cr_assert_eq(peer_receive(p, &p->welcome), CB_RECORD_WELCOME);
    cr_assert_eq(p->welcome.features, CB_FEATURE_NAMED);
    cr_assert_eq(peer_receive(p, &n->names), CB_RECORD_NAMES);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(p->fds[i], -1);
    const struct cb_geometry *g = &p->welcome.geometry;
    map_part(n, &p->up, CB_NAMES_UP, g->up_bytes);
    map_part(n, &p->down, CB_NAMES_DOWN, g->down_bytes);
    if (hello->wake == CB_WAKE_FUTEX)
        map_part(n, &n->bell, CB_NAMES_BELL, CB_PAGE);
    cr_assert_eq(cb_lane_client_init(&p->lc, calloc(1, cb_lane_client_bytes(g)), g, p->up.base,
                                     p->down.base),
                 0);
}

static void ready(struct named_peer *n)
{
    cr_assert_eq(cb_doorbell_send(n->p.sock, CB_RECORD_READY), 0);
    peer_turn(&n->p, 20);
}

static void leave(struct named_peer *n)
{
    peer_close(&n->p);
    cb_segment_unmap(&n->bell);
}

/* A request of three tokens, to its end. */
static void is_served(struct peer *p)
{
    const uint32_t ids[4] = {1, 2, 3, 4};
    struct cb_request_entry e;
    struct cb_result_entry result;
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = 3;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(p, &e, ids, 4);
    do
        cr_assert(peer_result(p, &result));
    while (result.type == CB_RESULT_ACCEPTED || result.type == CB_RESULT_TOKENS);
    cr_assert_eq(result.type, CB_RESULT_FINISHED);
    cb_lane_client_free(p->lc, result.slot);
}

Test(named, a_lane_comes_with_names_that_go_when_it_is_ready)
{
    struct scene sc = begin();
    struct named_peer n;
    for (uint32_t wake = CB_WAKE_FUTEX; wake <= CB_WAKE_SOCKET; wake++) {
        const struct cb_hello hello = named_hello(wake);
        welcome(&n, &sc, &hello);
        cr_expect_eq(n_names(&sc), wake == CB_WAKE_FUTEX ? 3 : 2);
        ready(&n);
        cr_expect_eq(n_names(&sc), 0);
        cr_expect_eq(sc.s->daemon->clients->n_named, 1);
        is_served(&n.p);
        leave(&n);
        peer_turn(&n.p, 20);
    }
    end(&sc);
}

Test(named, nobody_gets_one_who_is_not_listed)
{
    struct scene sc = begin();
    const struct cb_hello hello = named_hello(CB_WAKE_FUTEX);
    refused(&sc, LISTED + 1, &hello, CB_DENIED, 0);
    refused(&sc, 0, &hello, CB_DENIED, 0);
    sc.s->daemon->clients->config.named_uids.n = 0;
    refused(&sc, LISTED, &hello, CB_DENIED, 0);
    end(&sc);
}

/* A semaphore is what the C library makes of it; a socket is not. */
Test(named, another_c_library_gets_no_semaphore)
{
    struct scene sc = begin();
    struct named_peer n;
    struct cb_hello hello = named_hello(CB_WAKE_FUTEX);
    snprintf(hello.libc, sizeof hello.libc, "musl-1.2.3");
    refused(&sc, LISTED, &hello, CB_VERSION, 0);
    hello.wake = CB_WAKE_SOCKET;
    welcome(&n, &sc, &hello);
    ready(&n);
    is_served(&n.p);
    leave(&n);
    end(&sc);
}

Test(named, names_go_with_whoever_does_not_get_ready)
{
    struct scene sc = begin();
    const struct cb_hello hello = named_hello(CB_WAKE_FUTEX);
    struct named_peer n;
    char record[CB_RECORD_BYTES];
    welcome(&n, &sc, &hello);
    leave(&n);
    for (int i = 0; i < 20; i++)
        daemon_turn(sc.s->daemon);
    cr_expect_eq(n_names(&sc), 0);
    welcome(&n, &sc, &hello);
    sc.s->holds_time = false; /* two seconds are over */
    cr_expect_eq(peer_receive(&n.p, record), -1);
    cr_expect_eq(n_names(&sc), 0);
    leave(&n);
    end(&sc);
}

Test(named, it_is_charged_with_its_bell)
{
    struct scene sc = begin();
    const struct cb_hello with = named_hello(CB_WAKE_FUTEX), without = named_hello(CB_WAKE_SOCKET);
    struct named_peer a, b;
    welcome(&a, &sc, &with);
    uint64_t bytes = sc.s->daemon->clients->lane_bytes;
    welcome(&b, &sc, &without);
    cr_expect_eq(2 * bytes - sc.s->daemon->clients->lane_bytes, CB_PAGE);
    sc.s->settings.uid_bytes = bytes;
    refused(&(struct scene){.s = sc.s, .instance = "nobody's"}, LISTED, &with, CB_QUOTA,
            CB_LIMIT_UID_MIB);
    leave(&a);
    leave(&b);
    end(&sc);
}

/* ---- the bell -------------------------------------------------------------------------------- */

Test(named, a_parked_client_is_posted_once_a_sleep)
{
    struct scene sc = begin();
    const struct cb_hello hello = named_hello(CB_WAKE_FUTEX);
    const uint32_t ids[4] = {1, 2, 3, 4};
    struct named_peer n;
    struct cb_request_entry e;
    uint32_t bell;
    int value = -1;
    welcome(&n, &sc, &hello);
    ready(&n);
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = 30;
    e.flags = CB_FLAG_IGNORE_EOS;
    for (int sleeps = 1; sleeps < 3; sleeps++) {
        cr_assert_eq(cb_lane_client_park(n.p.lc, &bell), CB_LANE_NOTHING);
        peer_submit(&n.p, &e, ids, 4);
        (void)cb_doorbell_send(n.p.sock, CB_RECORD_BELL);
        peer_turn(&n.p, 50);
        cr_assert_eq(sem_getvalue(n.bell.base, &value), 0);
        cr_expect_eq(value, sleeps);
        cb_lane_client_unpark(n.p.lc);
        struct cb_result_entry result;
        while (cb_lane_client_poll(n.p.lc, &result) & CB_LANE_ENTRY)
            ;
    }
    cb_semaphore_empty(n.bell.base);
    cr_assert_eq(cb_lane_client_park(n.p.lc, &bell), CB_LANE_NOTHING);
    clients_close(sc.s->daemon->clients, clients_find(sc.s->daemon->clients, n.p.welcome.lane_id),
                  CB_CLOSED_DENIED);
    cr_assert_eq(sem_getvalue(n.bell.base, &value), 0);
    cr_expect_eq(value, 1, "whoever is closed is woken");
    leave(&n);
    end(&sc);
}

/* ---- what can be cut short ------------------------------------------------------------------- */

static void one_is_cut(enum cb_names_part part)
{
    struct scene sc = begin();
    const struct cb_hello hello = named_hello(CB_WAKE_FUTEX);
    struct named_peer bad, good;
    struct peer other;
    const struct cb_hello plain = peer_hello();
    uint32_t bell;
    welcome(&bad, &sc, &hello);
    int fd = open_part(&bad, part, true);
    ready(&bad);
    welcome(&good, &sc, &hello);
    ready(&good);
    peer_open(&other, sc.s, LISTED + 1, &plain);
    is_served(&bad.p);
    const uint32_t ids[4] = {1, 2, 3, 4};
    struct cb_request_entry e;
    cb_message_init(&e);
    e.n_prompt = 4;
    e.max_new_tokens = 30;
    e.flags = CB_FLAG_IGNORE_EOS;
    peer_submit(&bad.p, &e, ids, 4);
    (void)cb_lane_client_park(bad.p.lc, &bell);
    cr_assert_eq(ftruncate(fd, 0), 0);
    close(fd);
    (void)cb_doorbell_send(bad.p.sock, CB_RECORD_BELL);
    is_served(&good.p);
    is_served(&other);
    char record[CB_RECORD_BYTES];
    int type;
    while ((type = peer_receive(&bad.p, record)) > 0)
        ;
    cr_expect_eq(type, -1, "part %d: the lane goes on", part);
    cr_expect_eq(sc.s->daemon->clients->n_named, 1);
    is_served(&good.p);
    is_served(&other);
    leave(&bad);
    leave(&good);
    peer_close(&other);
    end(&sc);
}

Test(named, up_cut_short_breaks_its_lane_only)
{
    one_is_cut(CB_NAMES_UP);
}

Test(named, down_cut_short_breaks_its_lane_only)
{
    one_is_cut(CB_NAMES_DOWN);
}

Test(named, a_bell_cut_short_breaks_its_lane_only)
{
    one_is_cut(CB_NAMES_BELL);
}

/* ---- no room --------------------------------------------------------------------------------- */

Test(named, a_full_dev_shm_is_a_limit_with_a_number)
{
    struct scene sc = begin();
    const struct cb_hello hello = named_hello(CB_WAKE_FUTEX), plain = peer_hello();
    struct peer p;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/dev/shm", "tmpfs", 0, "size=8k")) {
        fprintf(stderr, "skipped: no mount namespace of one's own here\n");
        return;
    }
    refused(&sc, LISTED, &hello, CB_QUOTA, CB_LIMIT_SHM_KIB);
    cr_expect_eq(cb_names_room(), 8192);
    peer_open(&p, sc.s, LISTED, &plain); /* others need none of it */
    is_served(&p);
    peer_close(&p);
    end(&sc);
}

/* ---- lists of users -------------------------------------------------------------------------- */

Test(named, a_list_of_users)
{
    static const struct {
        const char *text, *complaint;
    } bad[] = {{",", "from ','"},        {"1,", "from '1,'"},       {"1,,2", "from ',2'"},
               {"root", "from 'root'"},  {"1 ,2", "from '1 ,2'"},   {"-1", "from '-1'"},
               {"4294967295", "from '"}, {"99999999999", "from '"}, {"5,6,5", "user 5 twice"}};
    char message[REFUSE_MESSAGE_MAX], many[800] = "";
    struct uids uids;
    cr_assert_eq(uids_parse("named_uids", "", &uids, message), 0);
    cr_expect_eq(uids.n, 0);
    cr_assert_eq(uids_parse("named_uids", "0,1000,4294967294", &uids, message), 0, "%s", message);
    cr_expect(uids_have(&uids, 0) && uids_have(&uids, 1000) && uids_have(&uids, 4294967294));
    cr_expect_not(uids_have(&uids, 1001));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_expect_eq(uids_parse("named_uids", bad[i].text, &uids, message), -EINVAL, "%s",
                     bad[i].text);
        cr_expect(strstr(message, "named_uids") && strstr(message, bad[i].complaint), "%s",
                  message);
        cr_expect_eq(uids.n, 3, "what was there stays");
    }
    for (int i = 0; i <= UIDS_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%d", i ? "," : "", i);
    cr_expect_eq(uids_parse("named_uids", many, &uids, message), -EINVAL);
    cr_expect(strstr(message, "more than 64"), "%s", message);
}
