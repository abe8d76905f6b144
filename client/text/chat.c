/* The template is a program in a language of its own (Jinja). Rather than look for a marker in it
 * and hope, it is compared, word for word, with the one frame that all ChatML templates of this
 * kind share; only the default system prompt may differ. Line ends inside its strings may be real
 * or written as \n. */
#include "client/text/chat.h"

#include <errno.h>
#include <string.h>

struct span {
    const char *at, *end;
};

struct sink {
    char *out;
    size_t capacity, n;
};

static void put(struct sink *sink, const char *bytes, size_t n)
{
    if (sink->n < sink->capacity) {
        size_t room = sink->capacity - sink->n;
        if (n > 0)
            memcpy(sink->out + sink->n, bytes, n < room ? n : room);
    }
    sink->n += n;
}

static void put_string(struct sink *sink, const char *s)
{
    put(sink, s, strlen(s));
}

/* Is here a line end, real or written as \n? Then steps over it. */
static bool eat_line_end(struct span *t)
{
    if (t->at < t->end && *t->at == '\n') {
        t->at++;
        return true;
    }
    if (t->end - t->at >= 2 && t->at[0] == '\\' && t->at[1] == 'n') {
        t->at += 2;
        return true;
    }
    return false;
}

/* Does the template go on like this? Then steps over it; if not, stays. */
static bool eat(struct span *t, const char *words)
{
    struct span ahead = *t;
    for (; *words; words++) {
        if (*words == '\n' ? !eat_line_end(&ahead) : ahead.at == ahead.end || *ahead.at++ != *words)
            return false;
    }
    *t = ahead;
    return true;
}

/* The text of a template's string up to `close`, with its line ends real. False: there is something
 * in it that a plain string does not have. */
static bool eat_literal(struct span *t, const char *close, struct sink *sink)
{
    while (!eat(t, close)) {
        if (eat_line_end(t)) {
            put(sink, "\n", 1);
        } else if (t->at == t->end || *t->at == '\\' || *t->at == '\'') {
            return false;
        } else {
            put(sink, t->at++, 1);
        }
    }
    return true;
}

/* Reads the template; puts the default system message, if it has one and `with_default`. */
static int read_template(const struct cb_vocab *vocab, bool with_default, struct sink *sink)
{
    struct span t = {vocab->chat_template, vocab->chat_template + vocab->template_bytes};
    struct sink nowhere = {0};
    if (!eat(&t, "{% for message in messages %}"))
        return -ENOTSUP;
    if (eat(&t, "{% if loop.first and messages[0]['role'] != 'system' %}{{ '")) {
        if (!eat_literal(&t, "' }}{% endif %}", with_default ? sink : &nowhere))
            return -ENOTSUP;
    }
    if (!eat(
            &t,
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"))
        return -ENOTSUP;
    while (eat_line_end(&t))
        ;
    return t.at == t.end ? 0 : -ENOTSUP;
}

int cb_chat_render(const struct cb_vocab *vocab, const struct cb_chat_turn *turns, size_t n,
                   bool open_answer, char *out, size_t capacity, size_t *n_out)
{
    struct sink sink = {.out = out, .capacity = capacity};
    *n_out = 0;
    if (vocab->template_bytes == 0)
        return -ENODATA;
    if (n == 0)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        if (!turns[i].role || !*turns[i].role)
            return -EINVAL;
    }
    int r = read_template(vocab, strcmp(turns[0].role, "system") != 0, &sink);
    if (r)
        return r;
    for (size_t i = 0; i < n; i++) {
        put_string(&sink, "<|im_start|>");
        put_string(&sink, turns[i].role);
        put_string(&sink, "\n");
        put(&sink, turns[i].content, turns[i].content_bytes);
        put_string(&sink, "<|im_end|>\n");
    }
    if (open_answer)
        put_string(&sink, "<|im_start|>assistant\n");
    *n_out = sink.n;
    return sink.n > capacity ? CB_CHAT_ROOM : 0;
}
