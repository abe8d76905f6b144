/* daemon/model/gguf_values.c - look-ups of keys, and the elements of arrays. */
#include "daemon/model/gguf_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>

#include "daemon/model/message.h"

static const struct entry *find(const struct gguf *g, const char *key)
{
    uint32_t low = 0, high = g->n_entries;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = strcmp(key, g->entries_by_name[mid]->name);

        if (order == 0)
            return g->entries_by_name[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

static int other_type(const struct gguf *g, const struct entry *e, const char *wanted,
                      char *message)
{
    return model_refuse(message, -EINVAL,
                        "%s: key '%s' at byte %" PRIu64 " has type %s%s where %s is needed: "
                        "convert the model again",
                        g->path, e->name, e->file_off, e->type == GGUF_ARRAY ? "array of " : "",
                        gguf_type_name(e->type == GGUF_ARRAY ? e->array.type : e->type), wanted);
}

/* Integers of any width as a 64-bit magnitude and sign; false: not an integer. */
static bool load_integer(const struct entry *e, uint64_t *valuep, bool *negativep)
{
    const uint8_t *p = (const uint8_t *)e->value.data;
    int64_t s;

    *negativep = false;
    switch (e->type) {
    case GGUF_U8:
        *valuep = p[0];
        return true;
    case GGUF_U16:
        *valuep = (uint64_t)p[0] | (uint64_t)p[1] << 8;
        return true;
    case GGUF_U32:
        *valuep = load_u32(p);
        return true;
    case GGUF_U64:
        *valuep = load_u64(p);
        return true;
    case GGUF_I8:
        s = (int8_t)p[0];
        break;
    case GGUF_I16:
        s = (int16_t)((uint16_t)p[0] | (uint16_t)(p[1] << 8));
        break;
    case GGUF_I32:
        s = (int32_t)load_u32(p);
        break;
    case GGUF_I64:
        s = (int64_t)load_u64(p);
        break;
    default:
        return false;
    }
    *negativep = s < 0;
    *valuep = (uint64_t)s;
    return true;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *valuep, char *message)
{
    const struct entry *e = find(g, key);
    uint64_t value;
    bool negative;

    if (!e)
        return GGUF_MISSING;
    if (!load_integer(e, &value, &negative))
        return other_type(g, e, "an integer", message);
    if (negative)
        return model_refuse(message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64 " is %" PRId64
                            ", which cannot be: convert the model again",
                            g->path, key, e->file_off, (int64_t)value);
    *valuep = value;
    return 0;
}

int gguf_u32(const struct gguf *g, const char *key, uint32_t *valuep, char *message)
{
    uint64_t value;
    int r = gguf_u64(g, key, &value, message);

    if (r)
        return r;
    if (value > UINT32_MAX)
        return model_refuse(message, -EINVAL,
                            "%s: key '%s' at byte %" PRIu64 " is %" PRIu64
                            ", which is too large: convert the model again",
                            g->path, key, find(g, key)->file_off, value);
    *valuep = (uint32_t)value;
    return 0;
}

int gguf_f32(const struct gguf *g, const char *key, float *valuep, char *message)
{
    const struct entry *e = find(g, key);
    double d;

    if (!e)
        return GGUF_MISSING;
    if (e->type == GGUF_F32) {
        memcpy(valuep, e->value.data, sizeof *valuep);
        return 0;
    }
    if (e->type != GGUF_F64)
        return other_type(g, e, "f32", message);
    memcpy(&d, e->value.data, sizeof d);
    *valuep = (float)d;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_BOOL)
        return other_type(g, e, "bool", message);
    *valuep = e->value.data[0] != 0;
    return 0;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_string *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_STRING)
        return other_type(g, e, "string", message);
    *valuep = e->value;
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, enum gguf_type type,
               struct gguf_array *valuep, char *message)
{
    const struct entry *e = find(g, key);

    if (!e)
        return GGUF_MISSING;
    if (e->type != GGUF_ARRAY || e->array.type != type) {
        char wanted[32] = "array of ";

        return other_type(g, e, strcat(wanted, gguf_type_name(type)), message);
    }
    *valuep = e->array;
    return 0;
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    assert(i < a->n && (a->type == GGUF_I32 || a->type == GGUF_U32));
    return (int32_t)load_u32(a->data + 4 * i);
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    float v;

    assert(i < a->n && a->type == GGUF_F32);
    memcpy(&v, a->data + 4 * i, sizeof v);
    return v;
}

struct gguf_walk gguf_walk(const struct gguf_array *a)
{
    assert(a->type == GGUF_STRING);
    return (struct gguf_walk){a->data, a->data + a->bytes, a->n};
}

/* Lengths were checked when the file was opened, and are checked again: the file may have
 * changed. */
bool gguf_walk_next(struct gguf_walk *w, struct gguf_string *stringp)
{
    uint64_t n;

    if (w->n_left == 0 || w->end - w->at < 8)
        return false;
    n = load_u64(w->at);
    if (n > (uint64_t)(w->end - w->at) - 8)
        return false;
    *stringp = (struct gguf_string){(const char *)w->at + 8, (size_t)n};
    w->at += 8 + n;
    w->n_left--;
    return true;
}
