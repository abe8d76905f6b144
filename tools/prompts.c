/* A line's options are read key by key from a table of known ones, so that a misspelt key is named
 * instead of being ignored. Values are only shaped here; whether they make sense, library and
 * daemon say. What is wrong with a line stays with its prompt, to be told in its place among the
 * answers. */
#include "tools/prompts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void prompts_fini(struct prompts *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->v[i].text);
        free(list->v[i].ids);
        free(list->v[i].fault);
        json_decref(list->v[i].line);
        choices_fini(&list->v[i].choices);
    }
    free(list->v);
}

static struct prompt *prompt_add(struct prompts *list, const struct cb_request *defaults)
{
    struct prompt *p;

    if ((list->n & (list->n - 1)) == 0) {
        size_t room = list->n ? list->n * 2 : 1;

        p = realloc(list->v, room * sizeof *p);
        if (!p) {
            cbctl_complain(list->ctl, "out of memory");
            return NULL;
        }
        list->v = p;
    }
    p = &list->v[list->n++];
    memset(p, 0, sizeof *p);
    p->request = *defaults;
    return p;
}

bool prompts_add_text(struct prompts *list, const char *text, const struct cb_request *defaults)
{
    struct prompt *p = prompt_add(list, defaults);

    if (p)
        p->text = strdup(text);
    return p && p->text;
}

bool prompts_add_ids(struct prompts *list, const char *text, const struct cb_request *defaults)
{
    struct prompt *p = prompt_add(list, defaults);

    if (p)
        p->ids = malloc((strlen(text) / 2 + 1) * sizeof *p->ids);
    if (!p || !p->ids)
        return false;
    while (*(text += strspn(text, " ,\t\n"))) {
        char *end;
        unsigned long v;

        errno = 0;
        v = strtoul(text, &end, 10);
        if (end == text || *text == '-' || v > UINT32_MAX || errno) {
            cbctl_complain(list->ctl, "\"%s\" is no list of token ids; give numbers and blanks",
                           text);
            return false;
        }
        p->ids[p->n_ids++] = (uint32_t)v;
        text = end;
    }
    return true;
}

/* All of it, 0-terminated; NULL: out of memory or a failed read. */
static char *read_all(FILE *f, size_t *bytesp)
{
    size_t n = 0, room = 1 << 16;
    char *text = malloc(room);

    while (text) {
        char *larger;

        n += fread(text + n, 1, room - 1 - n, f);
        if (n < room - 1)
            break;
        room *= 2;
        larger = realloc(text, room);
        if (!larger)
            free(text);
        text = larger;
    }
    if (text && ferror(f)) {
        free(text);
        return NULL;
    }
    if (text)
        text[n] = '\0';
    *bytesp = n;
    return text;
}

bool prompts_add_stdin(struct prompts *list, const struct cb_request *defaults)
{
    struct prompt *p = prompt_add(list, defaults);
    size_t bytes = 0;

    if (!p)
        return false;
    p->text = read_all(stdin, &bytes);
    if (!p->text || strlen(p->text) != bytes) {
        cbctl_complain(list->ctl, "standard input can't be read, or holds a NUL");
        return false;
    }
    return true;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Notes what is wrong with the line. Always false. */
__attribute__((format(printf, 2, 3))) static bool line_bad(struct prompt *p, const char *format,
                                                           ...)
{
    char what[256];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    p->fault = strdup(what);
    return false;
}

static bool line_prompt(struct prompt *p, const json_t *o)
{
    const json_t *text = json_object_get(o, "text"), *ids = json_object_get(o, "ids");
    json_t *value;
    size_t i;

    if (json_is_string(text) && !ids) {
        if (strlen(json_string_value(text)) != json_string_length(text))
            return line_bad(p, "the text holds a NUL");
        p->text = strdup(json_string_value(text));
        return p->text || line_bad(p, "out of memory");
    }
    if (!json_is_array(ids) || text)
        return line_bad(p, "needs a \"text\" or a list \"ids\", and not both");
    p->ids = calloc(json_array_size(ids) + 1, sizeof *p->ids);
    if (!p->ids)
        return line_bad(p, "out of memory");
    json_array_foreach(ids, i, value)
    {
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id > UINT32_MAX)
            return line_bad(p, "\"ids\" holds something that is no token id");
        p->ids[p->n_ids++] = (uint32_t)id;
    }
    return true;
}

static bool line_stops(struct prompt *p, const json_t *list)
{
    json_t *value;
    size_t i;

    p->request.stops = NULL;
    p->request.n_stops = 0;
    if (json_is_string(list)) {
        p->stops[0] = (struct cb_string){json_string_value(list), json_string_length(list)};
        p->request.n_stops = 1;
        return true;
    }
    if (!json_is_array(list) || json_array_size(list) > PROMPT_STOPS_MAX)
        return line_bad(p, "\"stop\" is a string or a list of up to 16");
    json_array_foreach(list, i, value)
    {
        if (!json_is_string(value))
            return line_bad(p, "\"stop\" is a string or a list of up to 16");
        p->stops[i] = (struct cb_string){json_string_value(value), json_string_length(value)};
    }
    p->request.n_stops = json_array_size(list);
    return true;
}

static bool line_stop_ids(struct prompt *p, const json_t *list)
{
    json_t *value;
    size_t i;

    p->request.stop_ids = NULL;
    if (!json_is_array(list) || json_array_size(list) > PROMPT_STOP_IDS_MAX)
        return line_bad(p, "\"stop_ids\" is a list of up to 64 ids");
    json_array_foreach(list, i, value)
    {
        json_int_t id = json_integer_value(value);

        if (!json_is_integer(value) || id < 0 || id > UINT32_MAX)
            return line_bad(p, "\"stop_ids\" holds something that is no token id");
        p->stop_ids[i] = (uint32_t)id;
    }
    p->request.n_stop_ids = json_array_size(list);
    return true;
}

/* A number of [least, most]; else *v stays. */
static bool line_number(struct prompt *p, const char *key, const json_t *value, double least,
                        double most, float *v)
{
    double number = json_number_value(value);

    if (!json_is_number(value) || !(number >= least && number <= most))
        return line_bad(p, "\"%s\" is no number from %.10g to %.10g", key, least, most);
    *v = (float)number;
    return true;
}

static bool line_whole(struct prompt *p, const char *key, const json_t *value, int64_t least,
                       int64_t most, int64_t *v)
{
    json_int_t number = json_integer_value(value);

    if (!json_is_integer(value) || number < least || number > most)
        return line_bad(p, "\"%s\" is no whole number from %lld to %lld", key, (long long)least,
                        (long long)most);
    *v = number;
    return true;
}

static bool line_choice(struct prompt *p, const char *key, const json_t *value)
{
    char fault[160];
    int taken;

    p->choices.request = &p->request; /* prompts move as their list grows, but not now */
    taken = choices_take_key(&p->choices, key, value, fault, sizeof fault);
    return taken > 0 || (taken ? line_bad(p, "%s", fault) : line_bad(p, "unknown key \"%s\"", key));
}

static bool line_option(struct prompt *p, const char *key, const json_t *value)
{
    struct cb_request *r = &p->request;
    int64_t n = 0;
    bool ok = true;

    if (!strcmp(key, "text") || !strcmp(key, "ids")) {
        ;
    } else if (!strcmp(key, "max_new_tokens")) {
        ok = line_whole(p, key, value, 0, CB_NO_LIMIT - 1, &n);
        r->max_new_tokens = (uint32_t)n;
    } else if (!strcmp(key, "n")) {
        ok = line_whole(p, key, value, 1, PROMPT_SEQUENCES_MAX, &n);
        r->n = (uint32_t)n;
    } else if (!strcmp(key, "temperature")) {
        ok = line_number(p, key, value, -1e30, 1e30, &r->temperature);
    } else if (!strcmp(key, "top_k")) {
        ok = line_whole(p, key, value, INT32_MIN, INT32_MAX, &n);
        r->top_k = (int32_t)n;
    } else if (!strcmp(key, "top_p")) {
        ok = line_number(p, key, value, -1e30, 1e30, &r->top_p);
    } else if (!strcmp(key, "deadline_ms")) {
        ok = line_whole(p, key, value, 1, (int64_t)PROMPT_DEADLINE_MS_MAX, &n);
        r->deadline_ms = (uint64_t)n;
    } else if (!strcmp(key, "priority")) {
        ok = line_whole(p, key, value, 0, PROMPT_PRIORITY_MAX, &n);
        r->priority = (uint32_t)n;
    } else if (!strcmp(key, "seed")) {
        ok = line_whole(p, key, value, 0, (int64_t)PROMPT_SEED_MAX, &n);
        r->seed = (uint64_t)n;
        r->flags |= CB_HAS_SEED;
    } else if (!strcmp(key, "ignore_eos")) {
        ok = json_is_boolean(value) || line_bad(p, "\"ignore_eos\" is true or false");
        r->flags = json_is_true(value) ? r->flags | CB_IGNORE_EOS : r->flags & ~CB_IGNORE_EOS;
    } else if (!strcmp(key, "cache_salt")) {
        r->cache_salt = json_string_value(value);
        ok = (r->cache_salt && strlen(r->cache_salt) == json_string_length(value)) ||
             line_bad(p, "\"cache_salt\" is a string without NUL");
    } else if (!strcmp(key, "stop")) {
        ok = line_stops(p, value);
    } else if (!strcmp(key, "stop_ids")) {
        ok = line_stop_ids(p, value);
    } else {
        ok = line_choice(p, key, value);
    }
    return ok;
}

static bool line_read(struct prompt *p, const char *line, size_t bytes)
{
    json_error_t error;
    json_t *value;
    const char *key;

    p->line = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!json_is_object(p->line))
        return line_bad(p, "%s", p->line ? "not a JSON object" : error.text);
    json_object_foreach(p->line, key, value)
    {
        if (!line_option(p, key, value))
            return false;
    }
    if (prompt_fault(p))
        return line_bad(p, "%s", prompt_fault(p));
    return line_prompt(p, p->line);
}

bool prompts_add_line(struct prompts *list, const char *file, size_t number, const char *line,
                      size_t bytes, const struct cb_request *defaults)
{
    struct prompt *p = prompt_add(list, defaults);

    if (!p)
        return false;
    p->file = file;
    p->line_number = number;
    if (line_read(p, line, bytes))
        return true;
    p->n_ids = 0; /* those that made sense are no prompt */
    if (!p->fault)
        cbctl_complain(list->ctl, "out of memory");
    return p->fault != NULL;
}

bool prompts_is_blank(const char *line, size_t bytes)
{
    return strspn(line, " \t\r\n") >= bytes;
}

bool prompts_add_file(struct prompts *list, const char *file, const struct cb_request *defaults)
{
    FILE *f = strcmp(file, "-") == 0 ? stdin : fopen(file, "r");
    size_t room = 0, number = 0;
    ssize_t n;
    char *line = NULL;
    bool ok = f != NULL;

    if (!f)
        cbctl_complain(list->ctl, "can't open %s: %s", file, strerror(errno));
    while (ok && (n = getline(&line, &room, f)) > 0) {
        number++;
        if (!prompts_is_blank(line, (size_t)n))
            ok = prompts_add_line(list, file, number, line, (size_t)n, defaults);
    }
    if (ok && ferror(f)) {
        cbctl_complain(list->ctl, "can't read %s: %s", file, strerror(errno));
        ok = false;
    }
    free(line);
    if (f && f != stdin)
        fclose(f);
    return ok;
}

const char *prompt_fault(const struct prompt *p)
{
    return prompt_n(p) > 1 && p->request.temperature == 0
               ? "greedy answers to a prompt are all the same: n above 1 needs a temperature"
               : NULL;
}

uint32_t prompt_n(const struct prompt *p)
{
    return p->request.n && !p->fault ? p->request.n : 1;
}

void prompt_complete(struct prompt *p)
{
    p->request.ids = p->ids;
    p->request.n_ids = p->n_ids;
    if (p->request.n_stops && !p->request.stops)
        p->request.stops = p->stops;
    if (p->request.n_stop_ids && !p->request.stop_ids)
        p->request.stop_ids = p->stop_ids;
}

/* A chat is rendered first. */
int prompt_tokenize(struct prompt *p, struct cb_handle *h, bool is_chat, const char *system)
{
    const char *text = p->text;
    char *rendered = NULL;
    uint32_t flags = 0;
    size_t bytes;
    int r;

    if (is_chat) {
        struct cb_chat_message messages[2] = {{.role = "system", .content = system},
                                              {.role = "user", .content = text}};
        const struct cb_chat_message *first = system ? messages : messages + 1;
        size_t n = system ? 2 : 1;

        r = cb_chat(h, first, n, NULL, 0, &bytes);
        if (r && r != CB_TOO_SMALL)
            return r;
        rendered = malloc(bytes + 1);
        if (!rendered)
            return CB_NO_MEMORY;
        r = cb_chat(h, first, n, rendered, bytes, &bytes);
        rendered[bytes] = '\0';
        text = rendered;
        flags = CB_PARSE_SPECIAL | CB_NO_BOS;
        if (r) {
            free(rendered);
            return r;
        }
    }
    r = cb_tokenize(h, text, strlen(text), flags, NULL, 0, &p->n_ids);
    if (r == CB_TOO_SMALL) {
        p->ids = malloc(p->n_ids * sizeof *p->ids);
        r = p->ids ? cb_tokenize(h, text, strlen(text), flags, p->ids, p->n_ids, &p->n_ids)
                   : CB_NO_MEMORY;
    }
    free(rendered);
    return r;
}
