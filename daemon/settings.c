/* One function sets everything: sources (settings_load.c) only find pairs of name and value,
 * settings_set finds what is meant, and setting.c knows kinds, bounds and words. */
#include "daemon/settings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/sched/shares.h"
#include "daemon/uids.h"

static const struct setting_row rows[SETTINGS_COUNT] = {
#define X(name, kind, preset, least, most, unit, flags, meaning) \
    {#name, SETTING_##kind, preset, (double)(least), (double)(most), unit, flags, meaning},
#define LIVE       SETTING_LIVE
#define DEPRECATED SETTING_DEPRECATED
    SETTINGS_TABLE(X)
#undef DEPRECATED
#undef LIVE
#undef X
};

static const size_t offsets[SETTINGS_COUNT] = {
#define X(name, ...) offsetof(struct settings, name),
    SETTINGS_TABLE(X)
#undef X
};

/* Another's words for a setting. */
static const struct other_name {
    const char *name, *to;
} other_names[] = {
    {"scheduler_type", "scheduler"},
};

#define N_OTHER_NAMES (sizeof other_names / sizeof other_names[0])

const struct setting_row *settings_row(uint32_t i)
{
    return i < SETTINGS_COUNT ? &rows[i] : NULL;
}

const char *settings_source_name(enum settings_source source)
{
    static const char *const names[] = {"default", "file", "environment", "command line",
                                        "operator"};
    return names[source];
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Levenshtein's distance; both at most SETTINGS_NAME_MAX long. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[SETTINGS_NAME_MAX + 1];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 0; a[i]; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < n; j++) {
            unsigned best = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            if (best > row[j] + 1)
                best = row[j] + 1;
            if (best > row[j + 1] + 1)
                best = row[j + 1] + 1;
            row[j + 1] = best;
        }
    }
    return row[n];
}

/* What may have been meant; NULL: no name is so near that it helps. */
static const char *nearest(const char *name)
{
    const char *best = NULL;
    unsigned least = 2 + (unsigned)strlen(name) / 4;
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        unsigned d = distance(name, rows[i].name);
        if (d < least) {
            least = d;
            best = rows[i].name;
        }
    }
    return best;
}

int settings_find(const char *name)
{
    for (int i = 0; i < SETTINGS_COUNT; i++)
        if (strcmp(rows[i].name, name) == 0)
            return i;
    return -1;
}

static int find_other(const char *name)
{
    for (int i = 0; i < (int)N_OTHER_NAMES; i++)
        if (strcmp(other_names[i].name, name) == 0)
            return i;
    return -1;
}

/* A name with `_` for each `-`: 0, or -ENOENT with message for one longer than any. */
static int plain_name(const char *given, char name[SETTINGS_NAME_MAX + 1], char *message)
{
    size_t n = strlen(given);
    if (n > SETTINGS_NAME_MAX)
        return refuse(message, -ENOENT, "no setting is called '%.64s...'", given);
    for (size_t i = 0; i <= n; i++)
        name[i] = given[i] == '-' ? '_' : given[i];
    return 0;
}

static int unknown(const char *name, char *message)
{
    const char *near = nearest(name);
    if (near)
        return refuse(message, -ENOENT, "no setting is called '%s'; the nearest is %s", name, near);
    return refuse(message, -ENOENT, "no setting is called '%s'; `cbd --help` lists all", name);
}

int settings_meant(const char *given, char *message)
{
    char name[SETTINGS_NAME_MAX + 1];
    int r = plain_name(given, name, message);
    if (r)
        return r;
    int i = settings_find(name);
    int other = i < 0 ? find_other(name) : -1;
    if (other >= 0)
        i = settings_find(other_names[other].to);
    return i >= 0 ? i : unknown(name, message);
}

/* The first value that a deprecated row is given is worth a line; its preset says nothing. */
static void warn_once(struct settings *set, int i, const char *value,
                      const struct settings_warn *warn)
{
    char text[SETTINGS_MESSAGE_MAX];
    if (!(rows[i].flags & SETTING_DEPRECATED) || set->warned[i] || !warn ||
        strcmp(value, rows[i].preset) == 0)
        return;
    set->warned[i] = true;
    snprintf(text, sizeof text, "%s is %s", rows[i].name, rows[i].meaning);
    warn->warn(warn->ctx, text);
}

int settings_set(struct settings *set, const char *given, const char *value,
                 enum settings_source source, const struct settings_warn *warn, char *message)
{
    int i = settings_meant(given, message);
    if (i < 0)
        return i;
    if (source == SETTINGS_OPERATOR && !(rows[i].flags & SETTING_LIVE))
        return refuse(message, -EPERM, "%s can't change while the daemon runs; restart it",
                      rows[i].name);
    int r = 0;
    if (i == SETTINGS_ROW_uid_weights)
        r = share_weights_parse(value, &(struct share_weights){0}, message);
    else if (i == SETTINGS_ROW_named_uids)
        r = uids_parse("named_uids", value, &(struct uids){0}, message);
    if (r == 0)
        r = setting_set(&rows[i], (char *)set + offsets[i], value, message);
    if (r)
        return r;
    set->sources[i] = (uint8_t)source;
    warn_once(set, i, value, warn);
    return 0;
}

void settings_value(const struct settings *set, uint32_t i, char text[SETTINGS_TEXT_MAX])
{
    setting_text(&rows[i], (const char *)set + offsets[i], text);
}

void settings_init(struct settings *set)
{
    char message[SETTINGS_MESSAGE_MAX];
    memset(set, 0, sizeof *set);
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++)
        (void)setting_set(&rows[i], (char *)set + offsets[i], rows[i].preset, message);
}

/* ---- all together ---------------------------------------------------------------------------- */

int settings_check(const struct settings *set, char *message)
{
    if (set->instance[0] == '.' || strspn(set->instance, "abcdefghijklmnopqrstuvwxyz"
                                                         "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                         "0123456789_.-") != strlen(set->instance))
        return refuse(message, -EINVAL,
                      "instance is '%s'; allowed: letters, digits, '_', '-' and '.', not first",
                      set->instance);
    if (set->lane_slots > set->lane_slots_max)
        return refuse(message, -EINVAL, "lane_slots (%llu) is above lane_slots_max (%llu)",
                      (unsigned long long)set->lane_slots, (unsigned long long)set->lane_slots_max);
    if (set->lane_arena_bytes > set->lane_arena_bytes_max)
        return refuse(message, -EINVAL,
                      "lane_arena_bytes (%llu) is above lane_arena_bytes_max (%llu)",
                      (unsigned long long)set->lane_arena_bytes,
                      (unsigned long long)set->lane_arena_bytes_max);
    if (set->lane_pool_tokens > set->lane_pool_tokens_max)
        return refuse(message, -EINVAL,
                      "lane_pool_tokens (%llu) is above lane_pool_tokens_max (%llu)",
                      (unsigned long long)set->lane_pool_tokens,
                      (unsigned long long)set->lane_pool_tokens_max);
    return 0;
}

void settings_help(FILE *out)
{
    char bounds[128];
    fprintf(out,
            "cbd - serves a language model to local processes through shared memory\n\n"
            "  cbd --model FILE|null [--config FILE] [--NAME VALUE ...]\n"
            "  cbd --help | --version\n\n"
            "Each setting is also a line `name = value` of the file, and CBD_NAME in the\n"
            "environment; the command line wins over the environment, that over the file.\n\n");
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        setting_bounds(&rows[i], bounds, sizeof bounds);
        fprintf(out, "  --%s %s\n      %s\n      (default: %s; %s%s)\n", rows[i].name,
                rows[i].kind == SETTING_STRING ? "TEXT" : "VALUE", rows[i].meaning,
                *rows[i].preset ? rows[i].preset : "empty", bounds,
                rows[i].flags & SETTING_LIVE ? "; may change while it runs" : "");
    }
}
