/* daemon/settings.h - what the operator decided: settings_table.h filled with values.
 *
 * Defaults, then the file (--config or CBD_CONFIG), then the environment (CBD_NAME), then the
 * command line; later ones win. Filled once by main, then const, but for the rows marked LIVE,
 * which an operator changes by settings_set. Every refusal is one sentence: what was given, where,
 * what is allowed, and for an unknown name the nearest one, if one is near. */
#ifndef CB_DAEMON_SETTINGS_H
#define CB_DAEMON_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/base/refuse.h"
#include "daemon/setting.h"
#include "daemon/settings_table.h"

#define SETTINGS_MESSAGE_MAX REFUSE_MESSAGE_MAX
#define SETTINGS_NAME_MAX    63 /* no setting has a longer name */

enum settings_source {
    SETTINGS_DEFAULT,
    SETTINGS_FILE,
    SETTINGS_ENVIRONMENT,
    SETTINGS_COMMAND_LINE,
    SETTINGS_OPERATOR, /* while the daemon ran */
};

#define SETTINGS_FIELD_STRING(name, most)        char name[(most) + 1];
#define SETTINGS_FIELD_CHOICE(name, most)        char name[24]; /* the word */
#define SETTINGS_FIELD_NUMBER(name, most)        uint64_t name;
#define SETTINGS_FIELD_OPTIONAL(name, most)      uint64_t name; /* or SETTING_NONE */
#define SETTINGS_FIELD_OCTAL(name, most)         uint64_t name;
#define SETTINGS_FIELD_REAL(name, most)          double name;
#define SETTINGS_FIELD_OPTIONAL_REAL(name, most) double name; /* negative: none */
#define SETTINGS_FIELD_BOOL(name, most)          bool name;

enum {
#define X(name, kind, ...) SETTINGS_ROW_##name,
    SETTINGS_TABLE(X)
#undef X
        SETTINGS_COUNT
};

struct settings {
#define X(name, kind, preset, least, most, ...) SETTINGS_FIELD_##kind(name, most)
    SETTINGS_TABLE(X)
#undef X
    uint8_t sources[SETTINGS_COUNT]; /* enum settings_source */
    bool warned[SETTINGS_COUNT];     /* its warning was given  */
};

/* Rows in the table's order, i < SETTINGS_COUNT. */
const struct setting_row *settings_row(uint32_t i);
/* The row of that name, exactly so written; -1: there is none. */
int settings_find(const char *name);
/* The row that a name means, with `-` for `_`, or another's word for it (scheduler_type); -ENOENT with
 * message, which suggests the nearest, if one is near. */
int settings_meant(const char *name, char *message);

void settings_init(struct settings *set);

/* Who is told of what was accepted with a warning; text is valid during the call. */
struct settings_warn {
    void (*warn)(void *ctx, const char *text);
    void *ctx;
};

/* Gives one a value; warn may be NULL. `-` and `_` in the name are the same. 0; -ENOENT: no such name; -EINVAL: not a
 * value of its kind; -ERANGE: out of bounds; -EPERM: SETTINGS_OPERATOR and not LIVE. On error
 * message (SETTINGS_MESSAGE_MAX bytes) is the sentence and nothing changed. */
int settings_set(struct settings *set, const char *name, const char *value,
                 enum settings_source source, const struct settings_warn *warn, char *message);

/* What no row can say alone. 0 or -EINVAL with message. */
int settings_check(const struct settings *set, char *message);

/* Value of row i as text that settings_set would take. */
void settings_value(const struct settings *set, uint32_t i, char text[SETTINGS_TEXT_MAX]);
void settings_help(FILE *out);

const char *settings_source_name(enum settings_source source);

/* ---- sources: settings_load.c ---------------------------------------------------------------- */

/* Reads `name = value` lines. `path` is for messages; the first bad line ends it. */
int settings_text(struct settings *set, const char *path, const char *text, size_t n,
                  const struct settings_warn *warn, char *message);

enum { SETTINGS_HELP = 1, SETTINGS_VERSION = 2 };

/* All sources in their order, then settings_check. 0, SETTINGS_HELP or SETTINGS_VERSION (that was
 * asked for; the rest was not looked at), or a negative errno with message. */
int settings_load(struct settings *set, int argc, char *const *argv, char *const *env,
                  const struct settings_warn *warn, char *message);

#endif
