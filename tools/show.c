/* Nothing here knows what it shows: a new counter or column needs no line. */
#include "tools/show.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS_MAX = 24, CELL_BYTES = 96 };

static const char *cell(const json_t *value, char out[CELL_BYTES])
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        snprintf(out, CELL_BYTES, "%s", json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(out, CELL_BYTES, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(out, CELL_BYTES, "%.3f", json_real_value(value));
        break;
    case JSON_TRUE:
        return "yes";
    case JSON_FALSE:
        return "no";
    case JSON_NULL:
        return "-";
    default:
        return "...";
    }
    /* What a client named itself must not steer the terminal. */
    for (char *p = out; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    }
    return out;
}

static bool is_among(const char *key, const char *const *keys, size_t n)
{
    while (n > 0)
        if (strcmp(keys[--n], key) == 0)
            return true;
    return false;
}

/* Columns are the keys of all rows, in the order of their coming: not every row has all. */
static void print_table(const json_t *rows)
{
    const char *keys[COLUMNS_MAX];
    int width[COLUMNS_MAX];
    size_t n = 0, i;
    char out[CELL_BYTES];
    const char *key;
    json_t *row, *value;

    json_array_foreach(rows, i, row)
    {
        json_object_foreach(row, key, value)
        {
            if (n < COLUMNS_MAX && !is_among(key, keys, n)) {
                keys[n] = key;
                width[n++] = (int)strlen(key);
            }
        }
    }
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < n; k++) {
            value = json_object_get(row, keys[k]);
            int w = value ? (int)strlen(cell(value, out)) : 1;

            width[k] = w > width[k] ? w : width[k];
        }
    }
    for (size_t k = 0; k < n; k++)
        printf("%-*s%s", k + 1 < n ? width[k] : 0, keys[k], k + 1 < n ? "  " : "\n");
    json_array_foreach(rows, i, row)
    {
        for (size_t k = 0; k < n; k++) {
            value = json_object_get(row, keys[k]);
            printf("%-*s%s", k + 1 < n ? width[k] : 0, value ? cell(value, out) : "-",
                   k + 1 < n ? "  " : "\n");
        }
    }
}

static void print_object(const json_t *o, int indent)
{
    int width = 0;
    char out[CELL_BYTES];
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)o, key, value)
    {
        if (!json_is_object(value) && !json_is_array(value) && (int)strlen(key) > width)
            width = (int)strlen(key);
    }
    json_object_foreach((json_t *)o, key, value)
    {
        if (json_is_object(value)) {
            printf("%*s%s:\n", indent, "", key);
            print_object(value, indent + 2);
        } else if (json_is_array(value)) {
            if (json_is_object(json_array_get(value, 0)))
                print_table(value);
            else
                printf("%*s%s: none\n", indent, "", key);
        } else {
            printf("%*s%-*s  %s\n", indent, "", width, key, cell(value, out));
        }
    }
}

void show(const json_t *o, bool as_json)
{
    if (as_json) {
        json_dumpf(o, stdout, JSON_COMPACT);
        putchar('\n');
    } else if (json_is_array(o)) {
        if (json_array_size(o))
            print_table(o);
        else
            printf("none\n");
    } else {
        print_object(o, 0);
    }
}
