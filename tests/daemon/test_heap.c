/* After the daemon was made nothing calls the heap, whatever clients do: this program counts every
 * call. Not under the sanitizers, whose own allocators stand in that place. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/daemon/peer.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static atomic_bool is_counting;
static atomic_uint n_calls;

static void count(void)
{
    if (is_counting)
        n_calls++;
}

void *malloc(size_t n)
{
    count();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count();
    return __libc_realloc(p, n);
}

static void turn(struct sim *s, int n)
{
    is_counting = true;
    for (int i = 0; i < n; i++)
        daemon_turn(s->daemon);
    is_counting = false;
}

static void command(struct sim *s, struct peer *p, const char *name, const char *argument)
{
    struct cb_admin record = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_ADMIN},
                              .command_bytes = (uint32_t)strlen(name),
                              .argument_bytes = (uint32_t)strlen(argument)};
    char reply[CB_RECORD_BYTES];
    memcpy(record.command, name, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    peer_send(p, &record, sizeof record);
    turn(s, 4);
    while (recv(p->sock, reply, sizeof reply, MSG_DONTWAIT) > 0)
        ;
}

Test(heap, the_counter_counts)
{
    is_counting = true;
    void *volatile p = malloc(10);
    is_counting = false;
    free(p);
    cr_assert_eq(n_calls, 1);
}

Test(heap, is_not_called_while_the_daemon_serves)
{
    struct sim_report report;
    struct sim *s = sim_new(1, false, &report);
    struct peer p, admin;
    const struct cb_hello hello = peer_hello();
    const uint32_t ids[4] = {1, 2, 3, 4};
    cr_assert(s);
    n_calls = 0;
    is_counting = true; /* the handshake too */
    peer_connect(&p, s, 1000);
    is_counting = false;
    peer_close(&p);
    struct cb_hello named = hello; /* and that of a lane by name */
    named.features = CB_FEATURE_NAMED;
    s->daemon->clients->config.named_uids = (struct uids){1, {1000}};
    peer_connect(&p, s, 1000);
    peer_send(&p, &named, sizeof named);
    turn(s, 10);
    cr_assert_eq(s->daemon->clients->n_named, 1);
    (void)cb_doorbell_send(p.sock, CB_RECORD_READY);
    turn(s, 10);
    (void)cb_doorbell_send(p.sock, CB_RECORD_BYE);
    turn(s, 10);
    cr_assert_eq(s->daemon->clients->n_lanes, 0);
    peer_close(&p);
    peer_open(&p, s, 1000, &hello);
    peer_connect(&admin, s, 0);
    for (int round = 0; round < 4; round++) {
        struct cb_request_entry e;
        struct cb_result_entry result;
        cb_message_init(&e);
        e.n_prompt = round == 3 ? 0 : 4; /* the last one is refused */
        e.max_new_tokens = 5;
        peer_submit(&p, &e, ids, 4);
        (void)cb_doorbell_send(p.sock, CB_RECORD_BELL);
        turn(s, 3);
        if (round == 2)
            (void)cb_lane_client_cancel(p.lc, e.slot, e.gen);
        command(s, &admin, "clients", "");
        command(s, &admin, "requests", "");
        command(s, &admin, "settings", "");
        command(s, &admin, "set", "spin_us=5");
        command(s, &admin, "set", "safety=0.5");
        command(s, &admin, "cancel", "1:0");
        turn(s, 20);
        while (cb_lane_client_poll(p.lc, &result) & CB_LANE_ENTRY)
            if (result.type != CB_RESULT_ACCEPTED && result.type != CB_RESULT_TOKENS)
                cb_lane_client_free(p.lc, result.slot);
    }
    cb_store64(&((struct cb_up_hot *)p.up.base)->req_sent, 1u << 20,
               CB_RELEASE); /* a broken lane */
    turn(s, 4);
    cr_assert_eq(cb_lane_client_closed(p.lc), CB_CLOSED_BROKEN);
    command(s, &admin, "drain", "");
    turn(s, 10);
    cr_assert_eq(n_calls, 0, "%u calls", n_calls);
    peer_close(&p);
    peer_close(&admin);
    sim_free(s);
}

static void on_ready(struct loop_watch *w, uint32_t events)
{
    uint64_t value;
    (void)events;
    (void)!read(w->fd, &value, sizeof value);
}

Test(heap, is_not_called_by_the_loops)
{
    static const enum loop_kind kinds[] = {LOOP_URING, LOOP_EPOLL};
    struct log log;
    log_init(&log, -1, LOG_LEVEL_ERROR, &clock_monotonic);
    for (int i = 0; i < 2; i++) {
        struct loop *l;
        struct loop_watch w = {.ready = on_ready};
        const uint64_t one = 1;
        if (loop_new(&l, kinds[i], 4, &clock_monotonic, &log))
            continue; /* io_uring is refused here */
        n_calls = 0;
        w.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        is_counting = true;
        int r = loop_watch(l, &w, LOOP_READ);
        for (int k = 0; k < 100; k++) {
            (void)!write(w.fd, &one, sizeof one);
            (void)loop_sleep(l, 1000000);
        }
        loop_unwatch(l, &w);
        is_counting = false;
        cr_assert_eq(r, 0);
        cr_assert_eq(n_calls, 0, "%s: %u calls", loop_name(l), n_calls);
        close(w.fd);
        loop_free(l);
    }
}

#endif
