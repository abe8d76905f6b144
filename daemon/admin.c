/* A table of commands, a function each. Lists that would not fit the reply end with "cut": true
 * rather than in the middle of an element. */
#include "daemon/admin.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "shm/status.h"

#define ELEMENT_BYTES 1024 /* more than any element of a list takes */

static const char *status_text(int status)
{
    switch (status) {
#define X(name, number, text) \
    case name:                \
        return text;
        CB_STATUS_TABLE(X)
#undef X
    }
    return "";
}

static int fail(struct buf *reply, int status, const char *why)
{
    buf_string(reply, "error", why ? why : status_text(status));
    return status;
}

static bool sees(const struct client *who, const struct client *cl)
{
    return who->may_admin || who->lease.uid == cl->lease.uid;
}

/* False, and says so, once the reply is nearly full. */
static bool has_room(struct buf *reply, bool *cutp)
{
    if (reply->cap - reply->n > 2 * ELEMENT_BYTES)
        return true;
    *cutp = true;
    return false;
}

/* ---- watching -------------------------------------------------------------------------------- */

static int command_clients(struct daemon *d, const struct client *who, const char *argument,
                           struct buf *reply)
{
    static const char *const states[] = {"free", "connected", "admin", "welcomed", "live", "gone"};
    bool cut = false;
    (void)argument;
    buf_open(reply, "clients", '[');
    for (uint32_t i = 0; i < d->clients->n_clients; i++) {
        const struct client *cl = &d->clients->table[i];
        if (cl->state == CLIENT_FREE || !sees(who, cl) || !has_room(reply, &cut))
            continue;
        buf_open(reply, NULL, '{');
        buf_u64(reply, "lane", cl->lane_id);
        buf_string(reply, "state", states[cl->state]);
        buf_u64(reply, "uid", cl->lease.uid);
        buf_i64(reply, "pid", cl->lease.pid);
        if (cl->lane) {
            struct cb_lane_info info;
            cb_lane_info(cl->lane, &info);
            buf_bytes(reply, "name", info.name, sizeof info.name);
            buf_u64(reply, "slots", info.n_slots);
            buf_u64(reply, "active", info.n_active);
            buf_bool(reply, "waits", info.waits);
            buf_u64(reply, "requests", info.n_requests);
            buf_u64(reply, "results", info.n_results);
            buf_u64(reply, "unread", info.n_unread);
            buf_u64(reply, "bytes", cl->bytes);
            buf_u64(reply, "pool_bytes", info.pool_bytes);
            buf_u64(reply, "pool_held_bytes", info.pool_held_bytes);
        }
        buf_close(reply, '}');
    }
    buf_close(reply, ']');
    buf_bool(reply, "cut", cut);
    return CB_OK;
}

static void put_request(const struct daemon *d, const struct client_slot *s, struct buf *reply)
{
    static const char *const phases[] = {"waiting", "prefilling", "decoding"};
    struct request_info info;
    engine_request_info(s->request, &info);
    buf_open(reply, NULL, '{');
    buf_u64(reply, "lane", s->client->lane_id);
    buf_u64(reply, "slot", s->slot);
    buf_u64(reply, "uid", s->client->lease.uid);
    buf_i64(reply, "pid", s->client->lease.pid);
    buf_string(reply, "phase", phases[info.phase]);
    buf_u64(reply, "prompt_tokens", info.n_prompt);
    buf_u64(reply, "generated_tokens", info.n_generated);
    buf_u64(reply, "max_new_tokens", info.max_new_tokens);
    buf_u64(reply, "cached_tokens", info.n_cached);
    buf_u64(reply, "blocks", info.n_blocks);
    buf_u64(reply, "soft_resets", info.n_soft_resets);
    buf_u64(reply, "age_ms", (clock_now(d->config.clock) - s->accepted_ns) / 1000000u);
    buf_close(reply, '}');
}

static int command_requests(struct daemon *d, const struct client *who, const char *argument,
                            struct buf *reply)
{
    bool cut = false;
    (void)argument;
    buf_open(reply, "requests", '[');
    for (uint32_t i = 0; i < d->clients->n_clients; i++) {
        const struct client *cl = &d->clients->table[i];
        if (cl->state == CLIENT_FREE || cl->n_running == 0 || !sees(who, cl))
            continue;
        for (uint32_t s = 0; s < cl->geometry.n_slots; s++)
            if (cl->slots[s].request && has_room(reply, &cut))
                put_request(d, &cl->slots[s], reply);
    }
    buf_close(reply, ']');
    buf_bool(reply, "cut", cut);
    return CB_OK;
}

static void put_setting(const struct daemon *d, const struct settings_facts *facts, uint32_t i,
                        struct buf *reply)
{
    const struct settings *set = d->config.settings;
    const struct setting_row *row = settings_row(i);
    const char *idle = settings_idle(set, facts, i);
    char text[SETTINGS_TEXT_MAX];
    buf_open(reply, NULL, '{');
    buf_string(reply, "name", row->name);
    settings_value(set, i, text);
    buf_string(reply, "value", text);
    settings_resolved_value(set, facts, i, text);
    buf_string(reply, "resolved", text);
    buf_string(reply, "source", settings_source_name((enum settings_source)set->sources[i]));
    buf_bool(reply, "live", row->flags & SETTING_LIVE);
    if (idle)
        buf_string(reply, "idle", idle);
    else
        buf_null(reply, "idle");
    buf_string(reply, "default", row->preset);
    setting_bounds(row, text, sizeof text);
    buf_string(reply, "bounds", text);
    buf_string(reply, "meaning", row->meaning);
    if (i == SETTINGS_ROW_batch_invariant && !set->batch_invariant) {
        struct cb_stats_boot boot;
        cb_stats_boot(d->config.stats, &boot);
        buf_string(reply, "effect", boot.batch_invariant);
    }
    buf_close(reply, '}');
}

static int command_settings(struct daemon *d, const struct client *who, const char *argument,
                            struct buf *reply)
{
    char message[SETTINGS_MESSAGE_MAX];
    int only = *argument ? settings_meant(argument, message) : -1;
    const struct settings_facts facts = daemon_facts(d->config.model);
    (void)who;
    if (*argument && only < 0)
        return fail(reply, CB_BAD_SETTING, message);
    buf_open(reply, "settings", '[');
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++)
        if (only < 0 || i == (uint32_t)only)
            put_setting(d, &facts, i, reply);
    buf_close(reply, ']');
    return CB_OK;
}

/* ---- changing -------------------------------------------------------------------------------- */

static int command_set(struct daemon *d, const struct client *who, const char *argument,
                       struct buf *reply)
{
    char pair[256], message[SETTINGS_MESSAGE_MAX];
    size_t n = strcspn(argument, "= ");
    if (!argument[n] || strlen(argument) >= sizeof pair)
        return fail(reply, CB_BAD_SETTING, "give NAME=VALUE");
    strcpy(pair, argument);
    pair[n] = 0;
    if (settings_set(d->config.settings, pair, pair + n + 1, SETTINGS_OPERATOR, NULL, message))
        return fail(reply, CB_BAD_SETTING, message);
    daemon_settings_changed(d);
    log_info(d->config.log, "uid %u set %s to %s", (unsigned)who->lease.uid, pair, pair + n + 1);
    buf_string(reply, "name", pair);
    buf_string(reply, "value", pair + n + 1);
    return CB_OK;
}

static int command_cancel(struct daemon *d, const struct client *who, const char *argument,
                          struct buf *reply)
{
    char *end;
    unsigned long lane_id = strtoul(argument, &end, 10);
    bool has_slot = end != argument && (*end == ':' || *end == '.');
    const char *slot_text = end + 1;
    unsigned long slot = has_slot ? strtoul(slot_text, &end, 10) : 0;
    if (*argument < '0' || *argument > '9' || *end || lane_id > UINT32_MAX ||
        (has_slot && (*slot_text < '0' || *slot_text > '9')))
        return fail(reply, CB_INVALID, "give LANE or LANE:SLOT, numbers as `requests` shows them");
    struct client *cl = clients_find(d->clients, (uint32_t)lane_id);
    if (!cl || (has_slot && slot >= cl->geometry.n_slots))
        return fail(reply, CB_NOT_FOUND, "no such lane or slot");
    if (!sees(who, cl))
        return fail(reply, CB_DENIED, NULL);
    uint64_t n = 0;
    for (uint32_t s = 0; s < cl->geometry.n_slots; s++)
        if (cl->slots[s].request && (!has_slot || s == slot)) {
            engine_cancel(d->engine, cl->slots[s].request);
            n++;
        }
    buf_u64(reply, "cancelled", n);
    return n || !has_slot ? CB_OK : fail(reply, CB_NOT_FOUND, "no request runs in this slot");
}

static int command_drain(struct daemon *d, const struct client *who, const char *argument,
                         struct buf *reply)
{
    (void)who;
    (void)argument;
    daemon_drain(d, "by command");
    buf_string(reply, "state", "draining");
    buf_u64(reply, "active", d->seen.n_active);
    buf_u64(reply, "waiting", d->seen.n_waiting);
    return CB_OK;
}

static int command_stop(struct daemon *d, const struct client *who, const char *argument,
                        struct buf *reply)
{
    (void)argument;
    log_info(d->config.log, "stopped by uid %u", (unsigned)who->lease.uid);
    daemon_stop(d);
    buf_string(reply, "state", "stopped");
    return CB_OK;
}

static const struct {
    const char *name;
    int (*run)(struct daemon *d, const struct client *who, const char *argument, struct buf *reply);
    bool needs_authority;
} commands[] = {
    {"clients", command_clients, false},   {"requests", command_requests, false},
    {"settings", command_settings, false}, {"set", command_set, true},
    {"cancel", command_cancel, false},     {"drain", command_drain, true},
    {"stop", command_stop, true},
};

int admin_command(struct daemon *d, const struct client *who, const char *command,
                  const char *argument, struct buf *reply)
{
    int status = CB_BAD_COMMAND;
    buf_open(reply, NULL, '{');
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, command) != 0)
            continue;
        status = commands[i].needs_authority && !who->may_admin
                     ? fail(reply, CB_DENIED, NULL)
                     : commands[i].run(d, who, argument, reply);
        buf_close(reply, '}');
        return status;
    }
    fail(reply, status, NULL);
    buf_close(reply, '}');
    return status;
}
