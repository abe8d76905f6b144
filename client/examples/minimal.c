/* minimal.c - one prompt, its answer streamed to the terminal.
 *
 *     minimal [PROMPT]        CBD_RUNTIME_DIR says where to look, if it is no usual place
 *
 * A model with a chat template is asked as an assistant; any other continues the text. */
#include <stdio.h>

#include <cbclient.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cb_message());
    return 1;
}

int main(int argc, char **argv)
{
    const char *prompt = argc > 1 ? argv[1] : "What is the capital of France?";
    struct cb_chat_message message = {"user", prompt, 0};
    struct cb_request request;
    struct cb_result result;
    struct cb_event event;
    struct cb_handle *h;
    struct cb_info info;
    uint64_t id;

    if (cb_open(&h, NULL))
        return fail("cb_open");
    if (cb_info(h, &info))
        return fail("cb_info");
    cb_request_init(&request);
    if (info.has_chat) {
        request.messages = &message;
        request.n_messages = 1;
    } else {
        request.text = prompt;
    }
    request.max_new_tokens = 64;
    if (cb_submit(h, &request, &id))
        return fail("cb_submit");

    do {
        const char *text;
        size_t bytes;
        if (cb_wait(h, id, &event, -1) < 0)
            return fail("cb_wait");
        if (cb_text(h, id, &text, &bytes) > 0) {
            fwrite(text, 1, bytes, stdout);
            fflush(stdout);
        }
    } while (event.type == CB_EVENT_TOKENS);
    putchar('\n');
    fflush(stdout);

    if (event.status) {
        char words[256];
        fprintf(stderr, "%s\n", cb_explain(event.status, event.detail, words, sizeof(words)));
        return 1;
    }
    cb_result(h, id, &result);
    fprintf(stderr, "%u prompt tokens, %u generated, first after %.1f ms, all after %.1f ms\n",
            result.n_prompt, result.n_generated, (double)result.first_token_ns / 1e6,
            (double)result.total_ns / 1e6);
    cb_release(h, id);
    cb_close(h);
    return 0;
}
