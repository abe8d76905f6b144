#include "tests/util/prometheus.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/utf8.h"

struct family { /* the metric whose samples are read */
    char name[96], type[16];
    bool has_help, has_type;
    /* of a histogram: */
    double last_bound, last_count, count;
    bool has_sum, has_count, has_inf;
};

static int wrong(struct prometheus *p, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(p->why, sizeof p->why, format, args);
    va_end(args);
    return -1;
}

static size_t name_length(const char *at, bool is_label)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789:";

    if (!strchr(letters, *at) || !*at)
        return 0;
    return is_label ? strcspn(at, "=") == strspn(at, rest) ? strspn(at, rest) : 0
                    : strspn(at, rest);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n >= k && strcmp(text + n - k, end) == 0;
}

/* Whether what was read of a histogram is all of one. */
static int family_close(struct prometheus *p, const struct family *f)
{
    if (strcmp(f->type, "histogram") == 0 &&
        !(f->has_inf && f->has_sum && f->has_count && f->last_count == f->count))
        return wrong(p, "%s: no +Inf, _sum or _count, or they disagree", f->name);
    return 0;
}

static int read_comment(struct prometheus *p, struct family *f, const char *line)
{
    char word[8], name[96];
    int n = 0;

    if (sscanf(line, "# %7s %95s %n", word, name, &n) != 2 || n == 0)
        return wrong(p, "no HELP or TYPE: %s", line);
    if (strcmp(word, "HELP") == 0) {
        if (family_close(p, f))
            return -1;
        for (size_t i = 0; i < p->n_samples; i++) {
            size_t k = strlen(name);

            if (strncmp(p->samples[i].name, name, k) == 0 && !p->samples[i].name[k])
                return wrong(p, "%s comes twice", name);
        }
        *f = (struct family){.has_help = true, .last_bound = -1};
        strcpy(f->name, name);
        return 0;
    }
    if (strcmp(word, "TYPE") != 0 || strcmp(name, f->name) != 0 || f->has_type)
        return wrong(p, "not the TYPE of %s: %s", f->name, line);
    f->has_type = true;
    if (strcmp(line + n, "counter") && strcmp(line + n, "gauge") && strcmp(line + n, "histogram"))
        return wrong(p, "no such type: %s", line);
    strcpy(f->type, line + n);
    if (strcmp(f->type, "counter") == 0 && !ends_with(name, "_total"))
        return wrong(p, "the counter %s does not end with _total", name);
    return 0;
}

/* {name="value",...}: how long it is; 0: it is wrong. *lep: the value of le. */
static size_t labels_length(const char *at, double *lep)
{
    const char *p = at + 1;

    while (*p != '}') {
        size_t n = name_length(p, true);
        bool is_le = n == 2 && strncmp(p, "le", 2) == 0;

        if (n == 0 || p[n] != '=' || p[n + 1] != '"')
            return 0;
        p += n + 2;
        if (is_le)
            *lep = strncmp(p, "+Inf", 4) == 0 ? (double)INFINITY : strtod(p, NULL);
        for (; *p != '"'; p++) {
            if (!*p || (*p == '\\' && !strchr("n\\\"", *++p)) || !*p)
                return 0;
        }
        p++;
        if (*p == ',')
            p++;
        else if (*p != '}')
            return 0;
    }
    return (size_t)(p + 1 - at);
}

static int check_histogram(struct prometheus *p, struct family *f,
                           const struct prometheus_sample *s, double le)
{
    const char *what = s->name + strlen(f->name);

    if (strcmp(what, "_bucket") == 0) {
        if (!(le > f->last_bound) || s->value < f->last_count)
            return wrong(p, "%s: bounds or counts do not grow at le %g", f->name, le);
        f->last_bound = le;
        f->last_count = s->value;
        f->has_inf = isinf(le);
    } else if (strcmp(what, "_sum") == 0) {
        f->has_sum = true;
    } else if (strcmp(what, "_count") == 0) {
        f->has_count = true;
        f->count = s->value;
    } else {
        return wrong(p, "%s is no part of a histogram", s->name);
    }
    return 0;
}

static int read_sample(struct prometheus *p, struct family *f, const char *line)
{
    struct prometheus_sample *s = &p->samples[p->n_samples];
    size_t n = name_length(line, false), n_labels = 0;
    double le = -1;
    char *end;

    if (p->n_samples == sizeof p->samples / sizeof p->samples[0] || n == 0 || n >= sizeof s->name)
        return wrong(p, "too many samples, or no name: %s", line);
    *s = (struct prometheus_sample){0};
    memcpy(s->name, line, n);
    if (line[n] == '{') {
        n_labels = labels_length(line + n, &le);
        if (n_labels < 2 || n_labels - 2 >= sizeof s->labels)
            return wrong(p, "labels: %s", line);
        memcpy(s->labels, line + n + 1, n_labels - 2);
    }
    s->value = strtod(line + n + n_labels, &end);
    if (line[n + n_labels] != ' ' || *end || end == line + n + n_labels)
        return wrong(p, "value: %s", line);
    if (!f->has_help || !f->has_type || strncmp(s->name, f->name, strlen(f->name)) != 0)
        return wrong(p, "%s has no HELP and TYPE before it", s->name);
    for (size_t i = 0; i < p->n_samples; i++) {
        if (strcmp(p->samples[i].name, s->name) == 0 &&
            strcmp(p->samples[i].labels, s->labels) == 0)
            return wrong(p, "twice: %s", line);
    }
    p->n_samples++;
    if (strcmp(f->type, "histogram") == 0)
        return check_histogram(p, f, s, le);
    return strcmp(s->name, f->name) == 0 ? 0 : wrong(p, "%s is not %s", s->name, f->name);
}

int prometheus_read(struct prometheus *p, const char *text)
{
    struct family f = {0};
    char line[2048];

    p->n_samples = 0;
    p->why[0] = 0;
    if (cb_utf8_valid((const uint8_t *)text, strlen(text)) != strlen(text))
        return wrong(p, "it is not UTF-8");
    while (*text) {
        size_t n = strcspn(text, "\n");

        if (text[n] != '\n' || n >= sizeof line)
            return wrong(p, "a line has no end, or is too long");
        memcpy(line, text, n);
        line[n] = 0;
        text += n + 1;
        if (line[0] == '#' ? read_comment(p, &f, line) : read_sample(p, &f, line))
            return -1;
    }
    return p->n_samples ? family_close(p, &f) : wrong(p, "it is empty");
}

const struct prometheus_sample *prometheus_find(const struct prometheus *p, const char *name,
                                                const char *label)
{
    for (size_t i = 0; i < p->n_samples; i++) {
        if (strcmp(p->samples[i].name, name) == 0 &&
            (!label || strstr(p->samples[i].labels, label)))
            return &p->samples[i];
    }
    return NULL;
}
