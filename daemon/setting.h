/* daemon/setting.h - one setting: its row, and its value as a field and as text.
 *
 * What the kinds are and what text they take, the head of settings_table.h says. A field is of the
 * kind's type, as settings.h lays it out. */
#ifndef CB_DAEMON_SETTING_H
#define CB_DAEMON_SETTING_H

#include <stddef.h>
#include <stdint.h>

#define SETTING_NONE       UINT64_MAX
#define SETTINGS_TEXT_MAX  1024 /* any value as text, its 0 included */
#define SETTING_LIVE       1
#define SETTING_DEPRECATED 2

enum setting_kind {
    SETTING_STRING,
    SETTING_CHOICE,
    SETTING_NUMBER,
    SETTING_OPTIONAL,
    SETTING_OCTAL,
    SETTING_REAL,
    SETTING_OPTIONAL_REAL,
    SETTING_BOOL,
};

struct setting_row {
    const char *name;
    enum setting_kind kind;
    const char *preset;
    double least, most;
    const char *unit;
    uint32_t flags;
    const char *meaning;
};

/* 0; -EINVAL: not a value of its kind; -ERANGE: out of bounds. On error message (REFUSE_MESSAGE_MAX
 * bytes) is the sentence, and the field is as it was. */
int setting_set(const struct setting_row *row, void *field, const char *value, char *message);

/* The value as text that setting_set would take. */
void setting_text(const struct setting_row *row, const void *field, char text[SETTINGS_TEXT_MAX]);

/* "16..4096 tokens", "a|b|c", ... */
void setting_bounds(const struct setting_row *row, char *text, size_t n);

#endif
