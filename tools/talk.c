/* The conversation, finding the socket and whom to trust are the library's. */
#include "tools/talk.h"

#include <unistd.h>

#include "client/command.h"
#include "client/internal.h"

int talk_open(const char *instance)
{
    struct cb_options options;

    cb_options_init(&options);
    options.instance = instance;
    return cb_find_socket(&options);
}

int talk_ask(int sock, const char *command, const char *argument, json_t **replyp)
{
    struct cb_command_answer answer;
    int r = cb_command(sock, command, argument, CB_COMMAND_MS, &answer);

    *replyp = answer.n ? json_loadb(answer.text, answer.n, JSON_DECODE_ANY, NULL) : NULL;
    if (!r && !*replyp)
        r = cb_fail_at("the daemon's answer is not JSON", CB_BAD_RECORD, 0, 0);
    cb_command_free(&answer);
    return r;
}

int talk(const char *instance, const char *command, const char *argument, json_t **replyp)
{
    int sock = talk_open(instance), r;

    *replyp = NULL;
    if (sock < 0)
        return sock;
    r = talk_ask(sock, command, argument, replyp);
    close(sock);
    return r;
}
