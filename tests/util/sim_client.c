#include "tests/util/sim_client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/doorbell.h"
#include "shm/message.h"
#include "tests/util/sim_client_parts.h"

void sim_client_init(struct sim_client *c, struct sim *sim, uint32_t idx, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    c->sim = sim;
    c->idx = idx;
    c->random = seed;
    c->sock = c->death = -1;
    c->uid = 1000 + draw(c, 2);
    c->wake = draw(c, 2);
    c->n_left = 1 + draw(c, 12);
    c->is_hostile = draw(c, 6) == 0;
    c->is_hasty = draw(c, 8) == 0;
    if (c->is_hasty)
        c->n_left += 16;
    c->is_lazy = c->is_hasty || draw(c, 5) == 0;
}

static void drop_memory(struct sim_client *c)
{
    cb_segment_unmap(&c->up);
    cb_segment_unmap(&c->down);
    free(c->lc);
    c->lc = NULL;
}

void sim_client_fini(struct sim_client *c)
{
    drop_memory(c);
    if (c->sock >= 0)
        close(c->sock);
    if (c->death >= 0)
        close(c->death);
    c->sock = c->death = -1;
    c->state = SIM_OVER;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static void greet(struct sim_client *c)
{
    struct cb_hello hello = {
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_HELLO},
        .format_min = 1,
        .format_max = 1 + draw(c, 3),
        .features = draw(c, 4) | (draw(c, 4) ? CB_FEATURES : 0),
        .word_size = CB_WORD_SIZE,
        .endian = CB_ENDIAN,
        .n_slots = 1 + draw(c, draw(c, 4) ? 8 : SIM_SLOTS_MAX),
        .wake = c->wake,
        .arena_bytes = SIM_REGIONS * SIM_REGION_BYTES,
        .pool_bytes = draw(c, 2) ? 0 : 4096u << 2 * draw(c, 2),
    };
    size_t n = sizeof hello;
    sim_connect(c->sim, c->uid, &c->sock, &c->death);
    c->state = SIM_GREETED;
    switch (draw(c, 20)) {
    case 0: /* says nothing, for ever */
        c->state = SIM_MUTE;
        return;
    case 1:
        hello.format_min = 7;
        hello.format_max = 9;
        c->was_refused = true;
        break;
    case 2:
        hello.reserved[draw(c, sizeof hello.reserved)] = 1;
        c->was_refused = true;
        break;
    case 3:
        n = draw(c, 2) ? 255 : 8;
        c->was_refused = true;
        break;
    case 4:
        hello.n_slots = 5000;
        c->was_refused = true;
        break;
    default:
        break;
    }
    (void)send(c->sock, &hello, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void welcomed(struct sim_client *c)
{
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = &c->welcome, .iov_len = sizeof c->welcome};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    int fds[4] = {-1, -1, -1, -1};
    struct cb_why why;
    ssize_t n = recvmsg(c->sock, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0 || c->welcome.head.type != CB_RECORD_WELCOME) {
        if (n > 0 && c->welcome.head.type != CB_RECORD_REFUSED)
            sim_fail(c->sim, "client %u: the answer to HELLO is of type %u", c->idx,
                     c->welcome.head.type);
        sim_client_fini(c);
        return;
    }
    if (c->was_refused)
        sim_fail(c->sim, "client %u: a bad HELLO was welcomed", c->idx);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    if (cmsg)
        memcpy(fds, CMSG_DATA(cmsg), sizeof fds);
    const struct cb_geometry *g = &c->welcome.geometry;
    int r = cb_geometry_check(g);
    if (r == 0)
        r = cb_segment_map(&c->up, fds[0], g->up_bytes, 1, &why);
    if (r == 0)
        r = cb_segment_map(&c->down, fds[1], g->down_bytes, 0, &why);
    for (int i = 0; i < 4; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    void *memory = calloc(1, cb_lane_client_bytes(g));
    if (r == 0)
        r = cb_lane_client_init(&c->lc, memory, g, c->up.base, c->down.base);
    if (r) {
        sim_fail(c->sim, "client %u: WELCOME makes no sense (%d)", c->idx, r);
        free(memory);
        sim_client_fini(c);
        return;
    }
    if (draw(c, 12) == 0) { /* killed between WELCOME and READY, or silent from here on */
        if (draw(c, 2))
            sim_client_die(c);
        else
            c->state = SIM_MUTE;
        return;
    }
    (void)cb_doorbell_send(c->sock, CB_RECORD_READY);
    c->state = SIM_LIVE;
}

void sim_client_ring(struct sim_client *c, int result)
{
    if (result > 0 && result & CB_LANE_RING)
        (void)cb_doorbell_send(c->sock, CB_RECORD_BELL);
}

/* ---- sleep ----------------------------------------------------------------------------------- */

static bool sock_is_readable(const struct sim_client *c)
{
    char byte;
    ssize_t n = recv(c->sock, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return n >= 0 || errno != EAGAIN;
}

static void park(struct sim_client *c)
{
    if (c->wake == CB_WAKE_SOCKET) { /* emptied before it arms, so that a bell keeps it readable */
        char record[CB_RECORD_BYTES];
        while (recv(c->sock, record, sizeof record, MSG_DONTWAIT) > 0)
            ;
    }
    if (cb_lane_client_park(c->lc, &c->bell) != CB_LANE_NOTHING) {
        cb_lane_client_unpark(c->lc);
        return;
    }
    c->is_parked = true;
    c->parked_ns = c->sim->time.now_ns;
}

static bool was_rung(const struct sim_client *c)
{
    if (c->wake == CB_WAKE_SOCKET)
        return sock_is_readable(c);
    return cb_load32(cb_lane_client_bell_word(c->lc), CB_ACQUIRE) != c->bell ||
           cb_lane_client_closed(c->lc);
}

/* It read all there was and asked for no pause, the house is empty: its requests are what the daemon
 * should be at. */
static bool is_forgotten(const struct sim_client *c)
{
    const struct daemon *d = c->sim->daemon;
    struct engine_stats stats;
    engine_stats(d->engine, &stats);
    return c->n_running > 0 && !c->is_hasty && !c->is_hostile && !c->wants_pause &&
           !d->pauses.is_on && stats.n_active + stats.n_waiting == 0;
}

static void wake_up(struct sim_client *c)
{
    if (!was_rung(c) && cb_lane_client_pending(c->lc))
        sim_fail(c->sim, "client %u: results waited and it was not woken", c->idx);
    else if (!was_rung(c) && is_forgotten(c))
        sim_fail(c->sim, "client %u: its requests wait, and nobody works", c->idx);
    c->is_parked = false;
    cb_lane_client_unpark(c->lc);
}

/* ---- misdeeds -------------------------------------------------------------------------------- */

/* A request or a family that makes sense but for its slots and generation, which may be in use. */
static void push_in(struct sim_client *c)
{
    const struct cb_geometry *g = &c->welcome.geometry;
    struct cb_up_hot *hot = c->up.base;
    unsigned char *bytes = c->up.base;
    uint64_t sent = cb_load64(&hot->req_sent, CB_RELAXED);
    struct cb_request_entry e;
    cb_message_init(&e);
    e.slot = draw(c, g->n_slots);
    e.n_children = 1 + draw(c, 4);
    e.gen = 1 + draw(c, 6);
    e.n_prompt = 1 + draw(c, 4);
    e.max_new_tokens = draw(c, 12);
    memcpy(bytes + g->up_ring_off + sent % g->req_capacity * g->req_stride, &e, sizeof e);
    cb_store64(&hot->req_sent, sent + 1, CB_RELEASE);
}

static void misbehave(struct sim_client *c)
{
    struct cb_up_hot *hot = c->up.base;
    uint64_t *words = c->up.base;
    uint64_t wild = (uint64_t)draw(c, UINT32_MAX) << 32 | draw(c, UINT32_MAX);
    switch (draw(c, 18)) {
    case 0:
        cb_store64(&hot->req_sent, wild, CB_RELEASE);
        break;
    case 1:
        cb_store64(&hot->res_taken, wild, CB_RELEASE);
        break;
    case 2:
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) - 1, CB_RELEASE);
        break;
    case 3:
        cb_store32(&hot->parked, (uint32_t)wild, CB_RELAXED);
        break;
    case 4: /* a random entry, published */
        for (uint32_t i = 0; i < 64; i++)
            words[c->welcome.geometry.up_ring_off / 8 + draw(c, 256)] = wild * (i + 1);
        cb_store64(&hot->req_sent, cb_load64(&hot->req_sent, CB_RELAXED) + 1, CB_RELEASE);
        break;
    case 5:
        for (uint32_t i = 0; i < 256; i++)
            words[draw(c, (uint32_t)(c->up.bytes / 8))] = wild * (i + 1);
        break;
    case 6:
        cb_store32(&hot->pause, (uint32_t)wild, CB_RELAXED);
        break;
    case 7: {
        char record[300];
        memset(record, (int)draw(c, 256), sizeof record);
        (void)send(c->sock, record, draw(c, 2) ? 256 : 1 + draw(c, 299),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    }
    case 8:
        (void)cb_doorbell_send(c->sock, (enum cb_record_type)(1 + draw(c, 8)));
        break;
    case 9:
        (void)cb_lane_client_cancel(c->lc, draw(c, c->welcome.geometry.n_slots), 1 + draw(c, 6));
        break;
    default:
        push_in(c);
        break;
    }
    (void)cb_doorbell_send(c->sock, CB_RECORD_BELL);
}

void sim_client_die(struct sim_client *c)
{
    static const uint64_t one = 1;
    c->sim->report->n_deaths++;
    c->sim->is_unread |= c->n_running > 0 || c->is_hostile || c->is_hasty;
    switch (draw(c, 3)) {
    case 0: /* a forked child keeps the socket: only the pidfd tells */
        if (write(c->death, &one, sizeof one) < 0)
            sim_fail(c->sim, "can't signal a death");
        drop_memory(c);
        c->state = SIM_OVER;
        return;
    case 1:
        (void)cb_doorbell_send(c->sock, CB_RECORD_BYE);
        break;
    default:
        break;
    }
    sim_client_fini(c);
}

/* ---- a life ---------------------------------------------------------------------------------- */

bool sim_client_can_act(const struct sim_client *c)
{
    switch (c->state) {
    case SIM_AWAY:
        return !c->sim->is_ending;
    case SIM_GREETED:
    case SIM_MUTE:
        return sock_is_readable(c);
    case SIM_LIVE:
        return !c->is_parked || was_rung(c) || c->sim->time.now_ns - c->parked_ns >= SIM_NET_NS;
    case SIM_OVER:
        break;
    }
    return false;
}

uint64_t sim_client_next_ns(const struct sim_client *c)
{
    return c->state == SIM_LIVE && c->is_parked ? c->parked_ns + SIM_NET_NS : LOOP_FOREVER;
}

/* With nothing under way a family in all slots finds room. */
static void check_slots(struct sim_client *c)
{
    if (!cb_lane_client_can_submit(c->lc, c->welcome.geometry.n_slots))
        sim_fail(c->sim, "client %u: slots were lost", c->idx);
}

static void live(struct sim_client *c)
{
    if (c->is_parked)
        wake_up(c);
    if (cb_lane_client_closed(c->lc)) {
        if (!c->is_hostile && cb_lane_client_closed(c->lc) != CB_CLOSED_STOPPED)
            sim_fail(c->sim, "client %u: an honest lane was closed (%u)", c->idx,
                     cb_lane_client_closed(c->lc));
        c->sim->is_unread = true;
        sim_client_fini(c);
        return;
    }
    sim_client_check_pause(c);
    uint32_t what = draw(c, 100);
    if (c->is_hostile && what < 20) {
        misbehave(c);
    } else if (c->is_hostile) {
        struct cb_result_entry e; /* looks no further: what it gets is its own doing */
        if (what < 60)
            (void)cb_lane_client_poll(c->lc, &e);
        else if (what < 62)
            sim_client_die(c);
        else
            park(c);
    } else if (what < 30 && c->n_left > 0) {
        sim_client_submit(c);
    } else if (what < 35) {
        sim_client_cancel(c);
    } else if (what < 36) {
        sim_client_die(c);
    } else if (what < (c->wants_pause ? 55u : 38u)) {
        sim_client_toggle_pause(c);
    } else if (c->is_hasty && what < 79) {
        sim_client_scan(c);
    } else if (what < 80 && (!c->is_lazy || what >= 75)) {
        if (!sim_client_poll(c)) {
            if (c->n_running == 0)
                check_slots(c);
            if (c->n_running == 0 && c->n_left == 0)
                sim_client_die(c);
            else if (c->n_running > 0)
                park(c);
        }
    } else if (c->n_running > 0) {
        park(c);
    }
}

void sim_client_act(struct sim_client *c)
{
    sim_note(c->sim, (uint64_t)c->idx << 8 | c->state);
    switch (c->state) {
    case SIM_AWAY:
        greet(c);
        break;
    case SIM_GREETED:
        welcomed(c);
        break;
    case SIM_MUTE: /* told to go, or never */
        sim_client_fini(c);
        break;
    case SIM_LIVE:
        live(c);
        break;
    case SIM_OVER:
        break;
    }
}
