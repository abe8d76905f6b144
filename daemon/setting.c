/* Numbers are read by hand: strtoull and strtod take signs, blanks, and words that nobody means. */
#include "daemon/setting.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/refuse.h"

static bool word_in(const char *words, const char *word)
{
    size_t n = strlen(word);
    for (const char *w = words; n > 0; w++) {
        size_t len = strcspn(w, "|");
        if (len == n && memcmp(w, word, n) == 0)
            return true;
        w += len;
        if (*w == 0)
            return false;
    }
    return false;
}

/* A whole number, perhaps with k, m or g. False: it is none, or does not fit 64 bits. */
static bool number_parse(const char *text, uint64_t *valuep)
{
    uint64_t value = 0;
    const char *t = text;
    for (; isdigit((unsigned char)*t); t++)
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*t - '0'), &value))
            return false;
    if (t == text)
        return false;
    int unit = tolower((unsigned char)*t);
    unsigned shift = unit == 'k' ? 10 : unit == 'm' ? 20 : unit == 'g' ? 30 : 0;
    if (shift) {
        if (value > UINT64_MAX >> shift)
            return false;
        value <<= shift;
        t++;
    }
    *valuep = value;
    return *t == 0;
}

static bool octal_parse(const char *text, uint64_t *valuep)
{
    uint64_t value = 0;
    size_t n = strlen(text);
    if (n == 0 || n > 6)
        return false;
    for (const char *t = text; *t; t++) {
        if (*t < '0' || *t > '7')
            return false;
        value = value << 3 | (uint64_t)(*t - '0');
    }
    *valuep = value;
    return true;
}

static bool real_parse(const char *text, double *valuep)
{
    char *end;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false; /* no sign, no blank, no inf, no nan, as strtod would take */
    for (const char *t = text; *t; t++)
        if (!isdigit((unsigned char)*t) && !strchr(".eE+-", *t))
            return false;
    *valuep = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*valuep);
}

void setting_bounds(const struct setting_row *row, char *text, size_t n)
{
    switch (row->kind) {
    case SETTING_STRING:
        snprintf(text, n, "%s of %.0f to %.0f bytes", row->unit, row->least, row->most);
        break;
    case SETTING_CHOICE:
        snprintf(text, n, "%s", row->unit);
        break;
    case SETTING_BOOL:
        snprintf(text, n, "true|false");
        break;
    case SETTING_OCTAL:
        snprintf(text, n, "%s %04o..%04o", row->unit, (unsigned)row->least, (unsigned)row->most);
        break;
    case SETTING_OPTIONAL:
    case SETTING_OPTIONAL_REAL:
        snprintf(text, n, "none or %.16g..%.16g %s", row->least, row->most, row->unit);
        break;
    case SETTING_NUMBER:
    case SETTING_REAL:
        snprintf(text, n, "%.13g..%.13g %s", row->least, row->most, row->unit);
        break;
    }
}

int setting_set(const struct setting_row *row, void *field, const char *value, char *message)
{
    char bounds[128];
    uint64_t number = 0;
    double real = 0;
    setting_bounds(row, bounds, sizeof bounds);
    switch (row->kind) {
    case SETTING_STRING: {
        size_t n = strlen(value);
        if ((double)n < row->least || (double)n > row->most)
            return refuse(message, -ERANGE, "%s has %zu bytes; allowed: %s", row->name, n, bounds);
        memcpy(field, value, n + 1);
        return 0;
    }
    case SETTING_CHOICE:
        if (!word_in(row->unit, value))
            return refuse(message, -EINVAL, "%s is '%.64s'; allowed: %s", row->name, value, bounds);
        strcpy(field, value); /* words of the table are shorter than the field */
        return 0;
    case SETTING_BOOL:
        if (!word_in("true|false|yes|no|on|off|1|0", value))
            return refuse(message, -EINVAL, "%s is '%.64s'; allowed: %s", row->name, value, bounds);
        *(bool *)field = word_in("true|yes|on|1", value);
        return 0;
    case SETTING_OPTIONAL:
    case SETTING_NUMBER:
    case SETTING_OCTAL:
        if (row->kind == SETTING_OPTIONAL && strcmp(value, "none") == 0) {
            *(uint64_t *)field = SETTING_NONE;
            return 0;
        }
        if (!(row->kind == SETTING_OCTAL ? octal_parse : number_parse)(value, &number))
            return refuse(message, -EINVAL, "%s is '%.64s', not a number; allowed: %s", row->name,
                          value, bounds);
        if ((double)number < row->least || (double)number > row->most)
            return refuse(message, -ERANGE, "%s is %.64s; allowed: %s", row->name, value, bounds);
        *(uint64_t *)field = number;
        return 0;
    case SETTING_OPTIONAL_REAL:
    case SETTING_REAL:
        if (row->kind == SETTING_OPTIONAL_REAL && strcmp(value, "none") == 0) {
            *(double *)field = -1;
            return 0;
        }
        if (!real_parse(value, &real))
            return refuse(message, -EINVAL, "%s is '%.64s', not a number; allowed: %s", row->name,
                          value, bounds);
        if (real < row->least || real > row->most)
            return refuse(message, -ERANGE, "%s is %.64s; allowed: %s", row->name, value, bounds);
        *(double *)field = real;
        return 0;
    }
    return -EINVAL;
}

void setting_text(const struct setting_row *row, const void *field, char text[SETTINGS_TEXT_MAX])
{
    switch (row->kind) {
    case SETTING_STRING:
    case SETTING_CHOICE:
        snprintf(text, SETTINGS_TEXT_MAX, "%s", (const char *)field);
        break;
    case SETTING_BOOL:
        strcpy(text, *(const bool *)field ? "true" : "false");
        break;
    case SETTING_OCTAL:
        snprintf(text, SETTINGS_TEXT_MAX, "%04llo", (unsigned long long)*(const uint64_t *)field);
        break;
    case SETTING_NUMBER:
    case SETTING_OPTIONAL:
        if (*(const uint64_t *)field == SETTING_NONE)
            strcpy(text, "none");
        else
            snprintf(text, SETTINGS_TEXT_MAX, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case SETTING_REAL:
    case SETTING_OPTIONAL_REAL:
        if (*(const double *)field < 0)
            strcpy(text, "none");
        else
            snprintf(text, SETTINGS_TEXT_MAX, "%.9g", *(const double *)field);
        break;
    }
}
