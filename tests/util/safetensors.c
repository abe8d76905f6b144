/* tests/util/safetensors.c - a length, a JSON header, the data. */
#include "tests/util/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES_MAX (1u << 24)

struct safetensors {
    uint8_t *file;
    size_t bytes, data_off;
    json_t *header;
};

static size_t value_bytes(const char *dtype)
{
    return strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0 ? 2 : 4;
}

static struct safetensors *complain(struct safetensors *s, const char *path, const char *what)
{
    fprintf(stderr, "%s: %s\n", path, what);
    return safetensors_close(s);
}

struct safetensors *safetensors_open(const char *path)
{
    struct safetensors *s = calloc(1, sizeof *s);
    FILE *f = fopen(path, "rb");
    uint64_t n_header;
    long end = -1;

    if (f && fseek(f, 0, SEEK_END) == 0)
        end = ftell(f);
    if (!s || end < 8) {
        if (f)
            fclose(f);
        return complain(s, path, "cannot be read, or is too short");
    }
    rewind(f);
    s->bytes = (size_t)end;
    s->file = malloc(s->bytes);
    if (!s->file || fread(s->file, 1, s->bytes, f) != s->bytes) {
        fclose(f);
        return complain(s, path, "cannot be read");
    }
    fclose(f);
    memcpy(&n_header, s->file, 8);
    if (n_header > HEADER_BYTES_MAX || n_header > s->bytes - 8)
        return complain(s, path, "the header is longer than the file");
    s->data_off = 8 + (size_t)n_header;
    s->header = json_loadb((const char *)s->file + 8, (size_t)n_header, 0, NULL);
    if (!json_is_object(s->header))
        return complain(s, path, "the header is no JSON object");
    return s;
}

struct safetensors *safetensors_close(struct safetensors *s)
{
    if (!s)
        return NULL;
    json_decref(s->header);
    free(s->file);
    free(s);
    return NULL;
}

const void *safetensors_get(const struct safetensors *s, const char *name, const char *dtype,
                            uint32_t shape[4])
{
    const json_t *t = json_object_get(s->header, name);
    const json_t *dims = json_object_get(t, "shape"), *off = json_object_get(t, "data_offsets");
    const char *type = json_string_value(json_object_get(t, "dtype"));
    json_int_t begin = json_integer_value(json_array_get(off, 0));
    json_int_t end = json_integer_value(json_array_get(off, 1));
    size_t n = 1, room = s->bytes - s->data_off;

    if (!type || strcmp(type, dtype) != 0 || json_array_size(dims) > 4) {
        fprintf(stderr, "tensor %s: missing, or no %s of up to 4 dimensions\n", name, dtype);
        return NULL;
    }
    for (size_t i = 0; i < 4; i++) {
        json_int_t d = i < json_array_size(dims) ? json_integer_value(json_array_get(dims, i)) : 1;

        if (d < 1 || d > INT32_MAX || __builtin_mul_overflow(n, (size_t)d, &n) || n > room) {
            fprintf(stderr, "tensor %s: larger than the file\n", name);
            return NULL;
        }
        shape[i] = (uint32_t)d;
    }
    if (begin < 0 || end < begin || (size_t)end > room ||
        (size_t)(end - begin) != n * value_bytes(dtype) ||
        (s->data_off + (size_t)begin) % value_bytes(dtype) != 0) {
        fprintf(stderr, "tensor %s: outside of the file, or not aligned\n", name);
        return NULL;
    }
    return s->file + s->data_off + begin;
}

const char *safetensors_name(const struct safetensors *s, size_t i)
{
    void *at = json_object_iter(s->header);

    while (at && (strcmp(json_object_iter_key(at), "__metadata__") == 0 || i-- > 0))
        at = json_object_iter_next(s->header, at);
    return at ? json_object_iter_key(at) : NULL;
}
