/* Which templates are known, what they give, and that others are refused. */
#include "client/text/chat.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#define FRAME                                                                                  \
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}" \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define PLAIN "{% for message in messages %}" FRAME
#define WITH_SYSTEM                                                                           \
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ " \
    "'<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}" FRAME

static const struct cb_chat_turn hello[] = {{"user", "Hi", 2}};

static int render(const char *template, const struct cb_chat_turn *turns, size_t n,
                  bool open_answer, char *out, size_t capacity, size_t *n_out)
{
    struct cb_vocab vocab = {.chat_template = template,
                             .template_bytes = (uint32_t)strlen(template)};
    return cb_chat_render(&vocab, turns, n, open_answer, out, capacity, n_out);
}

static void expect(const char *template, const struct cb_chat_turn *turns, size_t n,
                   bool open_answer, const char *text)
{
    char out[512];
    size_t n_out;
    cr_assert_eq(render(template, turns, n, open_answer, out, sizeof out, &n_out), 0);
    cr_assert(n_out == strlen(text) && memcmp(out, text, n_out) == 0, "%.*s", (int)n_out, out);
}

Test(chat, puts_the_default_system_prompt_before_a_first_message_of_another_role)
{
    static const struct cb_chat_turn own[] = {{"system", "S", 1}, {"user", "Hi", 2}};
    expect(WITH_SYSTEM, hello, 1, true,
           "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
           "<|im_start|>assistant\n");
    expect(
        WITH_SYSTEM, own, 2, true,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    expect(PLAIN, hello, 1, true, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

Test(chat, opens_an_answer_only_when_asked)
{
    expect(PLAIN, hello, 1, false, "<|im_start|>user\nHi<|im_end|>\n");
}

Test(chat, refuses_what_it_does_not_know)
{
    static const char *const templates[] = {
        "{{ bos_token }}" PLAIN,
        PLAIN "{{ eos_token }}",
        "{% if tools %}{{ '<|im_start|>system\n' }}{% endif %}" PLAIN,
        "{% for message in messages %}{{ '<|im_start|>' }}{% endfor %}",
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
        "'a\\tb' }}{% endif %}" FRAME,
    };
    char out[512];
    size_t n_out;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        cr_assert_eq(render(templates[i], hello, 1, true, out, sizeof out, &n_out), -ENOTSUP, "%zu",
                     i);
    for (size_t n = 1; n < strlen(WITH_SYSTEM); n++) {
        struct cb_vocab vocab = {.chat_template = WITH_SYSTEM, .template_bytes = (uint32_t)n};
        cr_assert_eq(cb_chat_render(&vocab, hello, 1, true, out, sizeof out, &n_out), -ENOTSUP);
    }
    cr_assert_eq(render("", hello, 1, true, out, sizeof out, &n_out), -ENODATA);
    cr_assert_eq(render(PLAIN, hello, 0, true, out, sizeof out, &n_out), -EINVAL);
    cr_assert_eq(render(PLAIN, (struct cb_chat_turn[]){{"", "x", 1}}, 1, true, out, 1, &n_out),
                 -EINVAL);
}

Test(chat, says_how_much_room_it_needs)
{
    char out[16];
    size_t n_out;
    memset(out, '#', sizeof out);
    cr_assert_eq(render(PLAIN, hello, 1, false, out, 10, &n_out), CB_CHAT_ROOM);
    cr_assert_eq(n_out, strlen("<|im_start|>user\nHi<|im_end|>\n"));
    cr_assert_eq(memcmp(out, "<|im_start######", 16), 0);
    cr_assert_eq(render(PLAIN, hello, 1, false, NULL, 0, &n_out), CB_CHAT_ROOM);
}
