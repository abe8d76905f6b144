/* A table of commands, a function each. Lists that would not fit the reply end with "cut": true
 * rather than in the middle of an element. */
#include "daemon/admin.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/admin_parts.h"
#include "daemon/base/log.h"
#include "shm/status.h"

/* ---- watching -------------------------------------------------------------------------------- */

static int command_clients(struct daemon *d, struct client *who, const char *argument,
                           struct buf *reply)
{
    static const char *const states[] = {"free", "connected", "admin", "welcomed", "live", "gone"};
    bool cut = false;
    (void)argument;
    buf_open(reply, "clients", '[');
    for (uint32_t i = 0; i < d->clients->n_clients; i++) {
        const struct client *cl = &d->clients->table[i];
        if (cl->state == CLIENT_FREE || !admin_sees(who, cl) || !admin_has_room(reply, &cut))
            continue;
        buf_open(reply, NULL, '{');
        buf_u64(reply, "lane", cl->lane_id);
        buf_string(reply, "state", states[cl->state]);
        buf_bool(reply, "paused", cl->is_paused);
        buf_bool(reply, "holds_pause", cl->holds_pause);
        buf_u64(reply, "uid", cl->lease.uid);
        buf_i64(reply, "pid", cl->lease.pid);
        if (cl->lane) {
            struct cb_lane_info info;
            cb_lane_info(cl->lane, &info);
            buf_bytes(reply, "name", info.name, sizeof info.name);
            buf_bool(reply, "named", cl->features & CB_FEATURE_NAMED);
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
    if (i == SETTINGS_ROW_cpu_offload_space && model_info(d->config.model)->n_pool_blocks > 0) {
        char words[256];
        daemon_say_pinned(model_info(d->config.model), words, sizeof words);
        buf_string(reply, "effect", words);
    }
    buf_close(reply, '}');
}

static int command_settings(struct daemon *d, struct client *who, const char *argument,
                            struct buf *reply)
{
    char message[SETTINGS_MESSAGE_MAX];
    int only = *argument ? settings_meant(argument, message) : -1;
    const struct settings_facts facts = daemon_facts(d->config.model);
    (void)who;
    if (*argument && only < 0)
        return admin_fail(reply, CB_BAD_SETTING, message);
    buf_open(reply, "settings", '[');
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++)
        if (only < 0 || i == (uint32_t)only)
            put_setting(d, &facts, i, reply);
    buf_close(reply, ']');
    return CB_OK;
}

/* ---- changing -------------------------------------------------------------------------------- */

static int command_set(struct daemon *d, struct client *who, const char *argument,
                       struct buf *reply)
{
    char pair[256], message[SETTINGS_MESSAGE_MAX];
    size_t n = strcspn(argument, "= ");
    if (!argument[n] || strlen(argument) >= sizeof pair)
        return admin_fail(reply, CB_BAD_SETTING, "give NAME=VALUE");
    strcpy(pair, argument);
    pair[n] = 0;
    if (settings_set(d->config.settings, pair, pair + n + 1, SETTINGS_OPERATOR, NULL, message))
        return admin_fail(reply, CB_BAD_SETTING, message);
    daemon_settings_changed(d);
    log_info(d->config.log, "uid %u set %s to %s", (unsigned)who->lease.uid, pair, pair + n + 1);
    buf_string(reply, "name", pair);
    buf_string(reply, "value", pair + n + 1);
    return CB_OK;
}

static const struct {
    const char *name;
    admin_command_fn *run;
    bool needs_authority;
} commands[] = {
    {"clients", command_clients, false},
    {"requests", admin_requests, false},
    {"why", admin_why, false},
    {"settings", command_settings, false},
    {"set", command_set, true},
    {"cancel", admin_cancel, false},
    {"pause", admin_pause, true},
    {"resume", admin_resume, true},
    {"drain", admin_drain, true},
    {"stop", admin_stop, true},
    {"stage-weights", admin_stage_weights, true},
    {"load-weights", admin_load_weights, true},
};

int admin_command(struct daemon *d, struct client *who, const char *command, const char *argument,
                  struct buf *reply)
{
    int status = CB_BAD_COMMAND;
    buf_open(reply, NULL, '{');
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, command) != 0)
            continue;
        status = commands[i].needs_authority && !who->may_admin
                     ? admin_fail(reply, CB_DENIED, NULL)
                     : commands[i].run(d, who, argument, reply);
        if (status != CONTROL_LATER)
            buf_close(reply, '}');
        return status;
    }
    admin_fail(reply, status, NULL);
    buf_close(reply, '}');
    return status;
}
