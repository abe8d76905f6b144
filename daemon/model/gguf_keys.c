/* daemon/model/gguf_keys.c - the keys of a file: each is read once, then they are sorted by name. */
#include "daemon/model/gguf_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/model/message.h"

static const struct {
    const char *name;
    uint8_t bytes; /* 0: has a length of its own */
} value_types[GGUF_TYPE_COUNT] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_type_name(enum gguf_type t)
{
    return (unsigned)t < GGUF_TYPE_COUNT ? value_types[t].name : "unknown";
}

static int take_type(struct cursor *c, enum gguf_type *type)
{
    uint32_t number;
    int r = cursor_take_u32(c, &number, "type");

    if (r)
        return r;
    if (number >= GGUF_TYPE_COUNT)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': value type %" PRIu32 " at byte %" PRIu64
                            " is none of GGUF's %d: " GGUF_DAMAGED,
                            c->g->path, c->name, number, c->at - 4, GGUF_TYPE_COUNT);
    *type = (enum gguf_type)number;
    return 0;
}

static int take_array(struct cursor *c, struct gguf_array *a)
{
    uint64_t at, element_bytes;
    struct gguf_string s;
    int r = take_type(c, &a->type);

    at = c->at;
    if (!r)
        r = cursor_take_u64(c, &a->n, "array length");
    if (r)
        return r;
    if (a->type == GGUF_ARRAY)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64
                            ": arrays of arrays are not supported: convert the model again",
                            c->g->path, c->name, at);
    element_bytes = a->type == GGUF_STRING ? 8 : value_types[a->type].bytes;
    if (a->n > cursor_left(c) / element_bytes)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the array at byte %" PRIu64 " claims %" PRIu64
                            " elements of type %s, but only %" PRIu64
                            " bytes of the file follow: " GGUF_DAMAGED,
                            c->g->path, c->name, at, a->n, gguf_type_name(a->type), cursor_left(c));
    a->file_off = c->at;
    a->data = c->g->data + c->at;
    if (a->type == GGUF_STRING)
        for (uint64_t i = 0; i < a->n && !r; i++)
            r = cursor_take_string(c, &s, "array element");
    else if (!cursor_take(c, a->n * element_bytes, "elements"))
        r = -EINVAL;
    a->bytes = (size_t)(c->at - a->file_off);
    return r;
}

int gguf_take_entry(struct cursor *c, uint64_t idx, struct entry *e)
{
    const uint8_t *p;
    int r;

    e->file_off = c->at;
    r = cursor_take_name(c, "key", idx, e->name);
    if (!r)
        r = take_type(c, &e->type);
    if (r)
        return r;
    if (e->type == GGUF_STRING)
        return cursor_take_string(c, &e->value, "string");
    if (e->type == GGUF_ARRAY)
        return take_array(c, &e->array);
    p = cursor_take(c, value_types[e->type].bytes, "value");
    if (!p)
        return -EINVAL;
    e->value = (struct gguf_string){(const char *)p, value_types[e->type].bytes};
    if (e->type == GGUF_BOOL && *p > 1)
        return model_refuse(c->message, -EINVAL,
                            "%s: key '%s': the bool at byte %" PRIu64 " is %u: " GGUF_DAMAGED,
                            c->g->path, c->name, c->at - 1, *p);
    return 0;
}

static int compare_entries(const void *a, const void *b)
{
    const struct entry *const *x = a, *const *y = b;

    return strcmp((*x)->name, (*y)->name);
}

int gguf_index_entries(struct gguf *g, char *message)
{
    for (uint32_t i = 0; i < g->n_entries; i++)
        g->entries_by_name[i] = &g->entries[i];
    qsort(g->entries_by_name, g->n_entries, sizeof g->entries_by_name[0], compare_entries);
    for (uint32_t i = 1; i < g->n_entries; i++) {
        const struct entry *a = g->entries_by_name[i - 1], *b = g->entries_by_name[i];

        if (strcmp(a->name, b->name) == 0)
            return model_refuse(message, -EINVAL,
                                "%s: key '%s' occurs twice, at bytes %" PRIu64 " and %" PRIu64
                                ": convert the model again",
                                g->path, a->name, a->file_off, b->file_off);
    }
    return 0;
}
