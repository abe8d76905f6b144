/* client/text/chat.h - turns of a chat to the text that a model expects, by its chat template.
 *
 * Known are the templates of the ChatML family: each message as
 * "<|im_start|>ROLE\nCONTENT<|im_end|>\n", with or without a default system prompt that goes in
 * front when the first message has another role. A template that says anything else is refused, not
 * guessed at.
 *
 * The text is meant for cb_tokenizer_encode with CB_TOKENIZE_SPECIAL. Contents go in as they are:
 * markers in a content that you do not trust would act as markers. */
#ifndef CB_CLIENT_TEXT_CHAT_H
#define CB_CLIENT_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "shm/vocab.h"

struct cb_chat_turn {
    const char *role; /* "system", "user", "assistant", or what else the model knows */
    const char *content;
    size_t content_bytes;
};

enum { CB_CHAT_ROOM = 1 };

/* Renders turns [n] to out [capacity], without a 0 at the end; open_answer: and the beginning of
 * the assistant's answer, which the model then writes.
 *   0              *n_out bytes were written
 *   CB_CHAT_ROOM   *n_out bytes are needed; the first `capacity` of them were written
 *   -ENOTSUP       the model's template is not of a known family
 *   -ENODATA       the model has no template
 *   -EINVAL        n is 0, or a role is empty */
int cb_chat_render(const struct cb_vocab *vocab, const struct cb_chat_turn *turns, size_t n,
                   bool open_answer, char *out, size_t capacity, size_t *n_out);

#endif
