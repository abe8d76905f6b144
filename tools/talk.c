/* One ADMIN record out, REPLY records in until the last one; their pieces together are the JSON.
 * Finding the socket and whom to trust are the library's. */
#include "tools/talk.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/internal.h"

enum { ANSWER_MS = 10000 };
#define ANSWER_BYTES_MAX (16u << 20)

struct answer {
    char *text;
    size_t n, room;
};

static int answer_add(struct answer *a, const char *text, size_t bytes)
{
    if (a->n + bytes > a->room) {
        size_t room = a->room ? a->room * 2 : 4096;
        char *larger = room <= ANSWER_BYTES_MAX ? realloc(a->text, room) : NULL;

        if (!larger)
            return cb_fail(CB_NO_MEMORY);
        a->text = larger;
        a->room = room;
    }
    memcpy(a->text + a->n, text, bytes);
    a->n += bytes;
    return 0;
}

/* All pieces; the daemon's status, or why there is no whole answer. */
static int receive_all(int sock, struct answer *a)
{
    for (;;) {
        struct pollfd p = {sock, POLLIN, 0};
        struct cb_reply piece;
        int ready = poll(&p, 1, ANSWER_MS);
        ssize_t n;
        int r;

        if (ready == 0)
            return cb_fail_silent(sock, ANSWER_MS / 1000);
        n = ready < 0 ? -1 : recv(sock, &piece, sizeof piece, MSG_DONTWAIT);
        /* ECONNRESET, told once: it closed without reading. A refusal may lie behind it. */
        if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ECONNRESET))
            continue;
        if (n <= 0)
            return cb_fail(CB_LOST);
        if (n == sizeof piece && piece.head.magic == CB_RECORD_MAGIC &&
            piece.head.type == CB_RECORD_REFUSED) {
            struct cb_refused refused;

            memcpy(&refused, &piece, sizeof refused);
            return cb_fail_with(refused.status, refused.detail[0], refused.detail[1]);
        }
        if (n != sizeof piece || piece.head.magic != CB_RECORD_MAGIC ||
            piece.head.type != CB_RECORD_REPLY || piece.bytes > sizeof piece.text)
            return cb_fail_at("the daemon's answer", CB_BAD_RECORD, 0, 0);
        r = answer_add(a, piece.text, piece.bytes);
        if (r)
            return r;
        if (piece.is_last)
            return piece.status ? cb_fail(piece.status) : 0;
    }
}

int talk_open(const char *instance)
{
    struct cb_options options;

    cb_options_init(&options);
    options.instance = instance;
    return cb_find_socket(&options);
}

int talk_ask(int sock, const char *command, const char *argument, json_t **replyp)
{
    struct cb_admin record = {
        .head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
        .command_bytes = (uint32_t)strlen(command),
        .argument_bytes = (uint32_t)strlen(argument),
    };
    struct answer answer = {0};
    int r;

    *replyp = NULL;
    if (strlen(command) >= sizeof record.command || strlen(argument) >= sizeof record.argument)
        return cb_fail_at("the command is too long", CB_INVALID, 0, 0);
    memcpy(record.command, command, strlen(command));
    memcpy(record.argument, argument, strlen(argument));
    /* Who hung up already may have said why: that is read next. */
    if (send(sock, &record, sizeof record, MSG_NOSIGNAL) < 0 && errno != EPIPE &&
        errno != ECONNRESET)
        r = cb_fail(CB_LOST);
    else
        r = receive_all(sock, &answer);
    if (answer.n)
        *replyp = json_loadb(answer.text, answer.n, JSON_DECODE_ANY, NULL);
    if (!r && !*replyp)
        r = cb_fail_at("the daemon's answer is not JSON", CB_BAD_RECORD, 0, 0);
    free(answer.text);
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
