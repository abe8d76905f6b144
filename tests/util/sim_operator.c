#include "tests/util/sim_operator.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/loop.h"
#include "shm/control.h"
#include "shm/status.h"
#include "tests/util/sim.h"

#define REST_NS_MOST 500000u
#define LOAD_NS_MOST 300000u
#define N_WEIGHTS    3u

enum { MORE = 1, HUNG_UP = 2 }; /* beside the statuses of answers, which are 0 or below */

void sim_operator_init(struct sim_operator *o, struct sim *sim, uint32_t idx, uint64_t seed)
{
    *o = (struct sim_operator){.sim = sim, .idx = idx, .random = seed, .sock = -1, .death = -1};
    o->fd = -1;
    o->n_left = 1 + sim_draw(&o->random, (SIM_EPOCHS_MAX - 1) / SIM_OPERATORS_MAX);
    o->wake_ns = sim_draw(&o->random, REST_NS_MOST);
}

static void drop_file(struct sim_operator *o)
{
    if (o->map)
        munmap(o->map, o->n_text);
    if (o->fd >= 0)
        close(o->fd);
    o->map = NULL;
    o->fd = -1;
}

static void hang_up(struct sim_operator *o)
{
    drop_file(o);
    if (o->sock >= 0)
        close(o->sock);
    if (o->death >= 0)
        close(o->death);
    o->sock = o->death = -1;
}

void sim_operator_fini(struct sim_operator *o)
{
    hang_up(o);
    o->state = SIM_OPERATOR_OVER;
}

static void rest(struct sim_operator *o)
{
    o->state = o->n_left ? SIM_OPERATOR_RESTS : SIM_OPERATOR_OVER;
    o->wake_ns = o->sim->time.now_ns + 1 + sim_draw(&o->random, REST_NS_MOST);
    if (o->n_left == 0)
        hang_up(o);
}

/* In the middle: whoever comes next must find room. */
static void go(struct sim_operator *o)
{
    hang_up(o);
    o->n_left--;
    rest(o);
}

static void command(struct sim_operator *o, const char *name, const char *argument)
{
    struct cb_admin record = {.head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
                              .command_bytes = (uint32_t)strlen(name),
                              .argument_bytes = (uint32_t)strlen(argument)};
    memcpy(record.command, name, record.command_bytes);
    memcpy(record.argument, argument, record.argument_bytes);
    (void)send(o->sock, &record, sizeof record, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void ask(struct sim_operator *o)
{
    char bytes[16];
    uint32_t kind = sim_draw(&o->random, 2 * SIM_FILES);
    o->file = kind < SIM_FILES ? (enum sim_file)kind : SIM_FILE_GOOD;
    o->n_text = sim_weights_text(sim_draw(&o->random, N_WEIGHTS), o->text);
    if (o->file == SIM_FILE_FOREIGN)
        o->text[sim_draw(&o->random, (uint32_t)o->n_text)] ^= 0x40;
    if (o->sock < 0)
        sim_connect(o->sim, 0, &o->sock, &o->death);
    snprintf(bytes, sizeof bytes, "%zu", o->n_text);
    command(o, "stage-weights", bytes);
    o->state = SIM_OPERATOR_ASKED;
}

static void say_filled(struct sim_operator *o)
{
    char text[33];
    XXH128_hash_t hash = XXH3_128bits(o->text, o->n_text);
    if (o->file == SIM_FILE_TORN)
        hash.low64 ^= 1;
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
             (uint64_t)hash.low64);
    command(o, "load-weights", text);
    o->state = SIM_OPERATOR_LOADS;
    o->wake_ns = o->file == SIM_FILE_HURRIED
                     ? o->sim->time.now_ns + sim_draw(&o->random, LOAD_NS_MOST)
                     : LOOP_FOREVER;
}

static void fill(struct sim_operator *o)
{
    if (pwrite(o->fd, o->text, o->n_text, 0) != (ssize_t)o->n_text)
        sim_fail(o->sim, "operator %u: the memory can't be filled", o->idx);
    if (o->file == SIM_FILE_MAPPED) {
        o->map = mmap(NULL, o->n_text, PROT_READ | PROT_WRITE, MAP_SHARED, o->fd, 0);
        if (o->map == MAP_FAILED) {
            o->map = NULL;
            sim_fail(o->sim, "operator %u: the memory can't be mapped", o->idx);
        }
    }
    if (o->file == SIM_FILE_LEFT)
        go(o);
    else
        say_filled(o);
}

/* A piece of an answer; a descriptor goes to o->fd. After the last one its status. */
static int answer(struct sim_operator *o)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct cb_reply piece;
    struct iovec iov = {.iov_base = &piece, .iov_len = sizeof piece};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(o->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (c)
        memcpy(&o->fd, CMSG_DATA(c), sizeof o->fd);
    if (n != sizeof piece || piece.head.type != CB_RECORD_REPLY) {
        if (!o->sim->is_ending)
            sim_fail(o->sim, "operator %u: hung up on", o->idx);
        sim_operator_fini(o);
        return HUNG_UP;
    }
    return piece.is_last ? piece.status : MORE;
}

static void asked(struct sim_operator *o)
{
    int status = answer(o);
    if (status > 0)
        return;
    if (status == CB_BUSY) { /* the other one loads */
        rest(o);
    } else if (status || o->fd < 0) {
        sim_fail(o->sim, "operator %u: no memory for weights (%d)", o->idx, status);
        sim_operator_fini(o);
    } else {
        fill(o);
    }
}

static void loaded(struct sim_operator *o)
{
    bool is_bad = o->file == SIM_FILE_TORN || o->file == SIM_FILE_FOREIGN;
    int status = answer(o);
    if (status > 0)
        return;
    if (status == CB_BUSY && o->map) {
        munmap(o->map, o->n_text);
        o->map = NULL;
        say_filled(o);
        return;
    }
    if (status != (is_bad ? CB_BAD_WEIGHTS : CB_OK) || o->map)
        sim_fail(o->sim, "operator %u: a file of kind %u was answered by %d", o->idx, o->file,
                 status);
    o->sim->report->n_weights_refused += status == CB_BAD_WEIGHTS;
    sim_note(o->sim, (uint64_t)(uint32_t)status);
    drop_file(o);
    o->n_left--;
    rest(o);
}

static bool is_readable(const struct sim_operator *o)
{
    char byte;
    return recv(o->sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno != EAGAIN;
}

bool sim_operator_can_act(const struct sim_operator *o)
{
    switch (o->state) {
    case SIM_OPERATOR_RESTS:
        return o->sim->time.now_ns >= o->wake_ns && !o->sim->is_ending;
    case SIM_OPERATOR_LOADS:
        if (o->sim->time.now_ns >= o->wake_ns)
            return true;
        return is_readable(o);
    case SIM_OPERATOR_ASKED:
        return is_readable(o);
    case SIM_OPERATOR_OVER:
        break;
    }
    return false;
}

uint64_t sim_operator_next_ns(const struct sim_operator *o)
{
    if (o->state == SIM_OPERATOR_LOADS)
        return o->wake_ns;
    return o->state == SIM_OPERATOR_RESTS && !o->sim->is_ending ? o->wake_ns : LOOP_FOREVER;
}

void sim_operator_act(struct sim_operator *o)
{
    sim_note(o->sim, (uint64_t)o->idx << 8 | o->state);
    switch (o->state) {
    case SIM_OPERATOR_RESTS:
        ask(o);
        break;
    case SIM_OPERATOR_ASKED:
        asked(o);
        break;
    case SIM_OPERATOR_LOADS:
        if (o->sim->time.now_ns >= o->wake_ns)
            go(o);
        else
            loaded(o);
        break;
    case SIM_OPERATOR_OVER:
        break;
    }
}
