/* Whatever a uid uses is charged in the function that takes it and given back in the one that lets
 * it go: clients_connect and client_release, clients_lane_open and clients_close,
 * clients_request_taken and clients_request_over. The audit counts it all again. */
#include "daemon/clients.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/engine.h"
#include "shm/doorbell.h"

int clients_new(struct clients **clientsp, const struct clients_config *config)
{
    struct clients *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->config = *config;
    c->n_clients = (uint32_t)config->settings->max_lanes + CLIENTS_SPARE;
    c->table = calloc(c->n_clients, sizeof *c->table);
    list_init(&c->free);
    if (!c->table || bells_init(&c->bells, c->n_clients) ||
        quotas_new(&c->quotas, c->n_clients, config->clock)) {
        clients_free(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < c->n_clients; i++) {
        c->table[i].clients = c;
        list_append(&c->free, &c->table[i].link);
    }
    chores_init(&c->chores, config->loop, config->clock, c->quotas, config->stats);
    *clientsp = c;
    return 0;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* At the loop's asking: its uid pays for it. */
static void take_down(struct client *cl, enum cb_closed why)
{
    struct chores *ch = &cl->clients->chores;
    struct quota *q = cl->quota;
    uint64_t since_ns = chores_now(ch);
    chores_hold(q);
    clients_close(cl->clients, cl, why);
    chores_charge(ch, q, &since_ns);
    chores_let_go(ch, q);
}

static void patience_due(struct loop_timer *t)
{
    struct client *cl = list_entry(t, struct client, patience);
    log_client(cl->clients->config.log, "uid %u did not %s within 2 s", (unsigned)cl->lease.uid,
               cl->state == CLIENT_ADMIN ? "read its answer" : "finish its handshake");
    /* No reason in the lane: if READY was on its way, the client takes this for a daemon that went, and
     * comes again. */
    take_down(cl, CB_CLOSED_NO);
}

static void pid_ready(struct loop_watch *w, uint32_t events)
{
    struct client *cl = list_entry(w, struct client, pid);
    (void)events;
    if (chores_may_end(&cl->clients->chores))
        take_down(cl, CB_CLOSED_BYE);
}

/* A bell that failed for another reason than a full socket leaves the sleep unanswered: the next
 * flush tries again, and a peer that is gone shows as the end of its socket. */
static void sock_rung(struct loop_watch *w, int result)
{
    struct client *cl = list_entry(w, struct client, sock);
    if (result == 0)
        cb_stats_add(cl->clients->config.stats, CB_STAT_bells_sent, 1);
    else if (cl->lane)
        cb_lane_unanswered(cl->lane);
}

int clients_connect(struct clients *c, int fd, const struct cb_lease *lease,
                    void (*ready)(struct loop_watch *w, uint32_t events), struct client **clientp,
                    uint32_t detail[2])
{
    const struct settings *set = c->config.settings;
    uint64_t now = clock_now(c->config.clock);
    bool may_admin = lease->uid == 0 || lease->uid == geteuid() ||
                     (c->config.admin_group != (gid_t)-1 &&
                      cb_lease_has_group(lease, fd, c->config.admin_group));
    uint32_t most = may_admin ? c->n_clients : c->n_clients - CLIENTS_RESERVED;
    struct quota *q = c->n_connections < most ? quotas_of(c->quotas, lease->uid) : NULL;
    if (!q)
        return cb_over(CB_LIMIT_CONNECTIONS, most, detail);
    if (q->use.n_half_open >= set->uid_half_open) {
        quotas_settle(c->quotas, q);
        return cb_over(CB_LIMIT_UID_HALF_OPEN, set->uid_half_open, detail);
    }

    struct client *cl = list_entry(c->free.next, struct client, link);
    list_remove(&cl->link);
    memset(cl, 0, sizeof *cl);
    list_init(&cl->link);
    list_init(&cl->waiting);
    cl->clients = c;
    cl->lease = *lease;
    cl->quota = q;
    cl->sock.fd = fd;
    cl->sock.ready = ready;
    cl->sock.rung = sock_rung;
    cl->pid.fd = lease->pidfd;
    cl->pid.ready = pid_ready;
    int r = loop_watch(c->config.loop, &cl->sock, LOOP_READ);
    if (r == 0 && cl->pid.fd >= 0)
        r = loop_watch(c->config.loop, &cl->pid, LOOP_READ);
    if (r) {
        loop_unwatch(c->config.loop, &cl->sock);
        cl->state = CLIENT_FREE;
        list_append(&c->free, &cl->link);
        quotas_settle(c->quotas, q);
        return CB_SYSTEM;
    }
    cl->state = CLIENT_CONNECTED;
    if (++c->last_lane_id == 0)
        c->last_lane_id = 1;
    cl->lane_id = c->last_lane_id;
    cl->may_admin = may_admin;
    c->n_connections++;
    q->use.n_connections++;
    q->use.n_half_open++;
    loop_timer_init(&cl->patience, patience_due);
    loop_timer_set(c->config.loop, &cl->patience, now + CLIENTS_PATIENCE_NS);
    *clientp = cl;
    return 0;
}

void clients_wait(struct client *cl, bool waits)
{
    const struct clients_config *config = &cl->clients->config;
    if (cl->state != CLIENT_CONNECTED && cl->state != CLIENT_WELCOMED)
        return;
    loop_timer_clear(&cl->patience);
    if (!waits)
        loop_timer_set(config->loop, &cl->patience, clock_now(config->clock) + CLIENTS_PATIENCE_NS);
}

/* No longer half-open: live, a command, or gone. */
static void handshake_over(struct client *cl)
{
    if (cl->state == CLIENT_CONNECTED || cl->state == CLIENT_WELCOMED)
        cl->quota->use.n_half_open--;
    loop_timer_clear(&cl->patience);
}

int clients_is_admin(struct clients *c, struct client *cl, uint32_t detail[2])
{
    (void)c;
    assert(cl->state == CLIENT_CONNECTED);
    if (cl->quota->use.n_admins >= CLIENTS_ADMINS_A_UID)
        return cb_over(CB_LIMIT_UID_ADMINS, CLIENTS_ADMINS_A_UID, detail);
    handshake_over(cl);
    cl->quota->use.n_admins++;
    cl->state = CLIENT_ADMIN;
    return 0;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

/* What hello may not have: 0, or a negative cb_status with detail. */
static int lane_allowed(const struct clients *c, const struct client *cl,
                        const struct cb_hello *hello, uint32_t detail[2])
{
    const struct settings *set = c->config.settings;
    const struct quota *q = cl->quota;
    uint64_t pool_max = set->lane_pool_tokens_max * sizeof(uint32_t);
    if (hello->features & CB_FEATURE_NAMED && !uids_have(&c->config.named_uids, cl->lease.uid))
        return CB_DENIED;
    if (quotas_holds_off(c->quotas, q))
        return CB_BUSY;
    if (q->use.n_connections - q->use.n_admins > set->uid_connections)
        return cb_over(CB_LIMIT_UID_CONNECTIONS, set->uid_connections, detail);
    if (hello->n_slots > set->lane_slots_max)
        return cb_over(CB_LIMIT_LANE_SLOTS, set->lane_slots_max, detail);
    if (hello->arena_bytes > set->lane_arena_bytes_max)
        return cb_over(CB_LIMIT_LANE_ARENA_KIB, set->lane_arena_bytes_max >> 10, detail);
    if (hello->pool_bytes > pool_max)
        return cb_over(CB_LIMIT_LANE_POOL, set->lane_pool_tokens_max, detail);
    if (c->n_lanes >= set->max_lanes)
        return cb_over(CB_LIMIT_LANES, set->max_lanes, detail);
    if (q->use.n_lanes >= set->uid_lanes)
        return cb_over(CB_LIMIT_UID_LANES, set->uid_lanes, detail);
    return 0;
}

static int no_memory(struct clients *c, const struct client *cl, int r, const struct cb_why *why,
                     uint32_t detail[2])
{
    log_client(c->config.log, "no lane for uid %u: %s", (unsigned)cl->lease.uid, why->text);
    if (r == -ENOSPC)
        return cb_over(CB_LIMIT_SHM_KIB, cb_names_room() >> 10, detail);
    return r == -ENOMEM ? CB_NO_MEMORY : CB_SYSTEM;
}

/* One lane more (by 1), or one less (by -1). */
static void count_lane(struct clients *c, struct client *cl, uint32_t by)
{
    uint64_t bytes = by == 1 ? cl->bytes : -cl->bytes;
    c->n_lanes += by;
    c->n_named += cl->features & CB_FEATURE_NAMED ? by : 0;
    c->lane_bytes += bytes;
    cl->quota->use.n_lanes += by;
    cl->quota->use.bytes += bytes;
    cb_stats_set(c->config.stats, CB_STAT_lanes, c->n_lanes);
    cb_stats_set(c->config.stats, CB_STAT_lanes_named, c->n_named);
    cb_stats_set(c->config.stats, CB_STAT_lane_bytes, c->lane_bytes);
}

int clients_lane_open(struct clients *c, struct client *cl, const struct cb_hello *hello,
                      int fds[2], uint32_t detail[2])
{
    const struct settings *set = c->config.settings;
    struct cb_geometry *g = &cl->geometry;
    struct cb_why why;
    assert(cl->state == CLIENT_CONNECTED);
    int status = lane_allowed(c, cl, hello, detail);
    if (status)
        return status;
    if (cb_geometry_make(g, hello->n_slots ? hello->n_slots : (uint32_t)set->lane_slots,
                         hello->arena_bytes ? hello->arena_bytes : set->lane_arena_bytes,
                         hello->pool_bytes ? hello->pool_bytes
                                           : set->lane_pool_tokens * sizeof(uint32_t),
                         c->config.n_vocab, c->config.n_context))
        return CB_INVALID;
    size_t lane_bytes = (cb_lane_bytes(g) + 63) / 64 * 64;
    size_t record_bytes = lane_bytes + g->n_slots * sizeof(struct client_slot);
    const struct lane_memory_wish wish = {
        .up_bytes = g->up_bytes,
        .down_bytes = g->down_bytes,
        .record_bytes = record_bytes,
        .is_named = hello->features & CB_FEATURE_NAMED,
        .has_bell = hello->wake == CB_WAKE_FUTEX,
        .instance = set->instance,
        .uid = cl->lease.uid,
    };
    uint64_t bytes =
        g->up_bytes + g->down_bytes + record_bytes + (wish.is_named && wish.has_bell ? CB_PAGE : 0);
    if (cl->quota->use.bytes + bytes > set->uid_bytes)
        return cb_over(CB_LIMIT_UID_MIB, set->uid_bytes >> 20, detail);
    int r = lane_memory_make(&cl->memory, &wish, fds, &why);
    if (r)
        return no_memory(c, cl, r, &why, detail);
    struct cb_lane_config config = {
        .lane_id = cl->lane_id,
        .boot_id = {c->config.boot_id[0], c->config.boot_id[1]},
        .fingerprint = {c->config.fingerprint[0], c->config.fingerprint[1]},
        .first_cursor = c->config.first_cursor,
    };
    cl->lane =
        cb_lane_init(cl->memory.record.base, g, cl->memory.up.base, cl->memory.down.base, &config);
    cb_lane_notice(cl->lane, c->notice);
    cl->slots = (struct client_slot *)(void *)((char *)cl->memory.record.base + lane_bytes);
    for (uint32_t i = 0; i < g->n_slots; i++)
        cl->slots[i] = (struct client_slot){.client = cl, .slot = i};
    cl->wake = hello->wake;
    cl->features = hello->features & (CB_FEATURES | CB_FEATURE_NAMED);
    cl->bytes = bytes;
    cl->state = CLIENT_WELCOMED;
    count_lane(c, cl, 1);
    return 0;
}

void clients_lane_live(struct clients *c, struct client *cl)
{
    assert(cl->state == CLIENT_WELCOMED);
    handshake_over(cl);
    lane_memory_unname(&cl->memory);
    cl->state = CLIENT_LIVE;
    list_append(&cl->quota->live, &cl->link);
    cb_stats_add(c->config.stats, CB_STAT_lanes_opened, 1);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void client_release(struct clients *c, struct client *cl)
{
    struct quota *q = cl->quota;
    cb_segment_unmap(&cl->memory.record);
    cl->slots = NULL;
    cl->state = CLIENT_FREE;
    c->n_connections--;
    q->use.n_connections--;
    quotas_settle(c->quotas, q);
    list_append(&c->free, &cl->link);
}

static void lane_broken(struct clients *c, struct client *cl)
{
    cb_stats_add(c->config.stats, CB_STAT_lane_broken, 1);
    quotas_hold_off(c->quotas, cl->quota);
    log_client(c->config.log, "lane %u of uid %u broke a rule of the format and was closed",
               cl->lane_id, (unsigned)cl->lease.uid);
}

/* Moves the bell: the word that is then woken. */
static cb_atomic32 *lane_bell(struct client *cl)
{
    return cl->memory.bell.base ? cb_semaphore_post(cl->memory.bell.base) : cb_lane_bell(cl->lane);
}

static void lane_ring(struct clients *c, struct client *cl)
{
    if (cl->wake == CB_WAKE_SOCKET) {
        if (!cl->sock.is_active)
            return;
        /* Now, not once it is known to be sent: by then the client may sleep anew. */
        cb_lane_answered(cl->lane);
        loop_ring(c->config.loop, &cl->sock);
        return;
    }
    bells_add(&c->bells, lane_bell(cl));
    cb_lane_answered(cl->lane);
    cb_stats_add(c->config.stats, CB_STAT_bells_sent, 1);
}

void clients_close(struct clients *c, struct client *cl, enum cb_closed why)
{
    if (cl->state == CLIENT_FREE || cl->state == CLIENT_GONE)
        return;
    handshake_over(cl);
    if (cl->state == CLIENT_ADMIN)
        cl->quota->use.n_admins--;
    clients_hold_pause(c, cl, false);
    if (cl->lane) {
        if (why == CB_CLOSED_BROKEN)
            lane_broken(c, cl);
        cb_lane_close(cl->lane, why);
        (void)cb_lane_flush(cl->lane);
        /* For a peer that only half died: it may sleep on the bell, and the socket's end below
         * wakes whoever sleeps on that. */
        (void)cb_doorbell_wake(lane_bell(cl));
        bells_settle(&c->bells); /* its own may be among them */
        cl->lane = NULL;
        lane_memory_end(&cl->memory);
        count_lane(c, cl, UINT32_MAX);
    }
    list_remove(&cl->link);
    list_remove(&cl->waiting);
    loop_unwatch(c->config.loop, &cl->sock);
    loop_unwatch(c->config.loop, &cl->pid);
    (void)shutdown(cl->sock.fd, SHUT_RDWR);
    close(cl->sock.fd);
    cb_lease_release(&cl->lease);
    c->has_credit = true;
    cl->state = CLIENT_GONE;
    if (cl->n_running == 0) {
        client_release(c, cl);
        return;
    }
    for (uint32_t i = 0; i < cl->geometry.n_slots; i++)
        if (cl->slots[i].request)
            engine_cancel(c->engine, cl->slots[i].request);
}

void clients_flush(struct clients *c, struct client *cl)
{
    if (!cl->lane)
        return;
    int r = cb_lane_flush(cl->lane);
    if (r < 0 || lane_memory_is_broken(&cl->memory))
        clients_close(c, cl, CB_CLOSED_BROKEN);
    else if (r & CB_LANE_RING)
        lane_ring(c, cl);
}

void clients_request_taken(struct clients *c, struct client_slot *s, struct request *request,
                           uint32_t n_prompt, uint64_t now_ns)
{
    struct client *cl = s->client;
    assert(!s->request);
    s->request = request;
    s->accepted_ns = now_ns;
    s->last_token_ns = 0;
    s->n_prompt = n_prompt;
    cl->n_running++;
    cl->quota->use.n_requests++;
    c->quotas->n_requests++;
    cl->quota->use.waiting_tokens += n_prompt;
}

void clients_request_over(struct clients *c, struct client_slot *s)
{
    struct client *cl = s->client;
    assert(s->request && cl->n_running > 0);
    s->request = NULL;
    cl->n_running--;
    cl->quota->use.n_requests--;
    c->quotas->n_requests--;
    cl->quota->use.waiting_tokens -= s->n_prompt;
    c->has_credit = true;
    if (cl->state == CLIENT_GONE && cl->n_running == 0)
        client_release(c, cl);
}

void clients_hold_pause(struct clients *c, struct client *cl, bool holds)
{
    if (cl->holds_pause == holds)
        return;
    cl->holds_pause = holds;
    c->n_holders += holds ? 1u : UINT32_MAX;
}

void clients_notice(struct clients *c, uint32_t bit, bool on)
{
    c->notice = on ? c->notice | bit : c->notice & ~bit;
    for (uint32_t i = 0; i < c->n_clients; i++) {
        struct client *cl = &c->table[i];
        if (!cl->lane)
            continue;
        cb_lane_notice(cl->lane, c->notice);
        if (cl->state != CLIENT_LIVE) /* its end of the lane is not made yet: it is told then */
            continue;
        (void)cb_doorbell_send(cl->sock.fd, CB_RECORD_NOTICE);
        clients_flush(c, cl);
    }
}

struct client *clients_find(struct clients *c, uint32_t lane_id)
{
    for (uint32_t i = 0; i < c->n_clients; i++)
        if (c->table[i].lane && c->table[i].lane_id == lane_id)
            return &c->table[i];
    return NULL;
}

struct clients *clients_free(struct clients *c)
{
    if (!c)
        return NULL;
    for (uint32_t i = 0; c->table && i < c->n_clients; i++) {
        struct client *cl = &c->table[i];
        if (cl->state == CLIENT_FREE)
            continue;
        clients_close(c, cl, CB_CLOSED_STOPPED);
    }
    free(c->table);
    bells_fini(&c->bells);
    quotas_free(c->quotas);
    free(c);
    return NULL;
}

/* ---- audit ----------------------------------------------------------------------------------- */

static struct quota_use count_use(const struct clients *c, const struct quota *q)
{
    struct quota_use u = {0};
    for (uint32_t i = 0; i < c->n_clients; i++) {
        const struct client *cl = &c->table[i];
        if (cl->state == CLIENT_FREE || cl->quota != q)
            continue;
        u.n_connections++;
        u.n_half_open += cl->state == CLIENT_CONNECTED || cl->state == CLIENT_WELCOMED;
        u.n_admins += cl->state == CLIENT_ADMIN;
        u.n_lanes += cl->lane != NULL;
        u.bytes += cl->lane ? cl->bytes : 0;
        u.n_requests += cl->n_running;
        for (uint32_t s = 0; cl->slots && s < cl->geometry.n_slots; s++)
            u.waiting_tokens += cl->slots[s].request ? cl->slots[s].n_prompt : 0;
    }
    return u;
}

int clients_check(const struct clients *c, const char **whyp)
{
    struct list *l, *after;
    uint32_t n_requests = 0;
    int r = 0;
    list_for_each (l, after, &c->quotas->used) {
        const struct quota *q = list_entry(l, const struct quota, link);
        const struct quota_use counted = count_use(c, q);
        if (r == 0)
            r = quota_check(q, &counted, whyp);
        n_requests += counted.n_requests;
    }
    uint32_t n_holders = 0;
    for (uint32_t i = 0; i < c->n_clients && r == 0; i++) {
        if (c->table[i].lane)
            r = cb_lane_check(c->table[i].lane, whyp);
        n_holders += c->table[i].holds_pause;
    }
    if (r == 0 && (n_holders != c->n_holders || n_requests != c->quotas->n_requests)) {
        *whyp =
            "clients: those that hold a pause, or their requests, are not as many as were counted";
        r = -EUCLEAN;
    }
    return r;
}
