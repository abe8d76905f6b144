/* A handler reads at most RECORDS_A_TURN records of one connection, so that bells at full speed
 * cost others nothing: the rest waits for the next turn. Commands cost far more than bells, so they
 * are counted by uid: COMMANDS_A_TURN, however many connections it has. */
#include "daemon/control.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/replies.h"
#include "shm/doorbell.h"

#define RECORDS_A_TURN  8
#define COMMANDS_A_TURN 4
#define ACCEPTS_A_TURN  16
#define OFFENCES        2

struct control {
    struct control_config config;
    struct loop_watch listener;
    int spare_fd; /* closed to accept and refuse when there are no descriptors left */
    bool refuses;
    struct replies *replies;
    uint64_t turn; /* from 1 */
};

static void client_ready(struct loop_watch *w, uint32_t events);

int control_new(struct control **controlp, const struct control_config *config)
{
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return -ENOMEM;
    c->config = *config;
    c->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int r = c->spare_fd < 0 ? -errno : replies_new(&c->replies, config->clients);
    if (r) {
        control_free(c);
        return r;
    }
    *controlp = c;
    return 0;
}

struct control *control_free(struct control *c)
{
    if (!c)
        return NULL;
    loop_unwatch(c->config.loop, &c->listener);
    if (c->spare_fd >= 0)
        close(c->spare_fd);
    replies_free(c->replies);
    free(c);
    return NULL;
}

void control_begin_turn(struct control *c, uint64_t now_ns)
{
    c->turn++;
    chores_begin_turn(&c->config.clients->chores, now_ns);
}

void control_refuse_all(struct control *c)
{
    c->refuses = true;
}

/* ---- records, pure --------------------------------------------------------------------------- */

/* What n received bytes say. */
enum control_record {
    CONTROL_BAD,
    CONTROL_HELLO,
    CONTROL_READY,
    CONTROL_BYE,
    CONTROL_BELL,
    CONTROL_ADMIN,
};

static bool is_zero(const void *bytes, size_t n)
{
    const unsigned char *b = bytes;
    unsigned char any = 0;
    for (size_t i = 0; i < n; i++)
        any |= b[i];
    return any == 0;
}

static enum control_record record_check(const void *bytes, size_t n)
{
    struct cb_record_head head;
    if (n != CB_RECORD_BYTES)
        return CONTROL_BAD;
    memcpy(&head, bytes, sizeof head);
    if (head.magic != CB_RECORD_MAGIC || head.reserved != 0)
        return CONTROL_BAD;
    switch (head.type) {
    case CB_RECORD_HELLO: {
        const struct cb_hello *hello = bytes;
        return is_zero(hello->reserved, sizeof hello->reserved) ? CONTROL_HELLO : CONTROL_BAD;
    }
    case CB_RECORD_ADMIN: {
        const struct cb_admin *admin = bytes;
        if (admin->command_bytes > sizeof admin->command ||
            admin->argument_bytes > sizeof admin->argument)
            return CONTROL_BAD;
        return is_zero(admin->command + admin->command_bytes,
                       sizeof admin->command - admin->command_bytes) &&
                       is_zero(admin->argument + admin->argument_bytes,
                               sizeof admin->argument - admin->argument_bytes)
                   ? CONTROL_ADMIN
                   : CONTROL_BAD;
    }
    case CB_RECORD_READY:
    case CB_RECORD_BYE:
    case CB_RECORD_BELL: {
        const struct cb_plain_record *plain = bytes;
        if (!is_zero(plain->reserved, sizeof plain->reserved))
            return CONTROL_BAD;
        return head.type == CB_RECORD_READY ? CONTROL_READY
               : head.type == CB_RECORD_BYE ? CONTROL_BYE
                                            : CONTROL_BELL;
    }
    default:
        return CONTROL_BAD;
    }
}

/* A semaphore is what the C library makes of it: both ends need the same one. */
static bool has_own_libc(const struct cb_hello *hello)
{
    char own[sizeof hello->libc + 1] = "";
    snprintf(own, sizeof own, "glibc-%s", gnu_get_libc_version());
    return strncmp(own, hello->libc, sizeof hello->libc) == 0;
}

/* Whether this version can serve a well-formed hello: 0 or a negative cb_status with detail. */
static int hello_check(const struct cb_hello *hello, uint32_t detail[2])
{
    detail[0] = hello->format_min;
    detail[1] = hello->format_max;
    if (hello->format_min > CB_FORMAT || hello->format_max < CB_FORMAT)
        return CB_VERSION;
    if (hello->word_size != CB_WORD_SIZE || hello->endian != CB_ENDIAN)
        return CB_VERSION;
    if (hello->features & CB_FEATURES_MUST)
        return CB_VERSION;
    if (hello->wake != CB_WAKE_FUTEX && hello->wake != CB_WAKE_SOCKET)
        return CB_BAD_RECORD;
    if (hello->features & CB_FEATURE_NAMED && hello->wake == CB_WAKE_FUTEX && !has_own_libc(hello))
        return CB_VERSION;
    return 0;
}

/* ---- handshake ------------------------------------------------------------------------------- */

static void refuse_socket(struct control *c, int fd, int status, const uint32_t detail[2])
{
    struct cb_refused refused = {
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_REFUSED},
        .status = status,
        .detail = {detail[0], detail[1]},
    };
    cb_stats_add(c->config.stats, CB_STAT_lanes_refused, 1);
    ssize_t n = send(fd, &refused, sizeof refused, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n; /* whoever is not there to read it needs no reason */
}

static void refuse_client(struct control *c, struct client *cl, int status,
                          const uint32_t detail[2])
{
    refuse_socket(c, cl->sock.fd, status, detail);
    clients_close(c->config.clients, cl, CB_CLOSED_BYE);
}

/* What the operator wants of requests that do not say. */
static void put_defaults(const struct settings *set, struct cb_welcome *w)
{
    if (!(w->features & CB_FEATURE_DEFAULTS))
        return;
    if (set->seed != SETTING_NONE) {
        w->defaults |= CB_DEFAULT_SEED;
        w->seed = set->seed;
    }
    if (set->return_logprobs)
        w->defaults |= CB_DEFAULT_LOGPROBS;
    if (strcmp(set->logprobs_mode, "raw") == 0)
        w->defaults |= CB_DEFAULT_RAW_LOGPROBS;
}

/* Where the parts of a lane by name are to be found. */
static bool send_names(struct control *c, const struct client *cl)
{
    struct cb_names_record names = {.head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_NAMES}};
    snprintf(names.lane, sizeof names.lane, "%s", cl->memory.names.base);
    snprintf(names.vocab, sizeof names.vocab, "%s", c->config.vocab_name);
    return send(cl->sock.fd, &names, sizeof names, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           (ssize_t)sizeof names;
}

static bool send_welcome(struct control *c, const struct client *cl, const int fds[4])
{
    const struct clients_config *config = &c->config.clients->config;
    struct cb_welcome welcome = {
        .features = cl->features,
        .head = {.magic = CB_RECORD_MAGIC, .type = CB_RECORD_WELCOME},
        .format = CB_FORMAT,
        .lane_id = cl->lane_id,
        .boot_id = {config->boot_id[0], config->boot_id[1]},
        .fingerprint = {config->fingerprint[0], config->fingerprint[1]},
        .geometry = cl->geometry,
        .vocab_bytes = c->config.vocab_bytes,
        .status_bytes = c->config.status_bytes,
        .spin_us = (uint32_t)config->settings->spin_us,
    };
    if (cl->features & CB_FEATURE_RESUME)
        welcome.weight_epoch = config->weight_epoch;
    put_defaults(config->settings, &welcome);
    strncpy(welcome.status_name, c->config.status_name, sizeof welcome.status_name - 1);
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr align;
    } control;
    memset(&control, 0, sizeof control);
    struct iovec iov = {.iov_base = &welcome, .iov_len = sizeof welcome};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    if (cl->features & CB_FEATURE_NAMED)
        return send(cl->sock.fd, &welcome, sizeof welcome, MSG_DONTWAIT | MSG_NOSIGNAL) ==
                   (ssize_t)sizeof welcome &&
               send_names(c, cl);
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);
    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(4 * sizeof(int));
    memcpy(CMSG_DATA(cmsg), fds, 4 * sizeof(int));
    return sendmsg(cl->sock.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof welcome;
}

static void handle_hello(struct control *c, struct client *cl, const struct cb_hello *hello)
{
    uint32_t detail[2] = {0, 0};
    int fds[4] = {-1, -1, c->config.status_fd, c->config.vocab_fd};
    int status = hello_check(hello, detail);
    if (status == 0 && c->refuses)
        status = CB_DRAINING;
    if (status == 0)
        status = clients_lane_open(c->config.clients, cl, hello, fds, detail);
    if (status) {
        refuse_client(c, cl, status, detail);
        return;
    }
    bool sent = send_welcome(c, cl, fds);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    if (!sent)
        clients_close(c->config.clients, cl, CB_CLOSED_BYE);
}

static void handle_admin(struct control *c, struct client *cl, const struct cb_admin *record)
{
    char command[sizeof record->command + 1] = "", argument[sizeof record->argument + 1] = "";
    memcpy(command, record->command, record->command_bytes);
    memcpy(argument, record->argument, record->argument_bytes);
    if (cl->state == CLIENT_CONNECTED) {
        uint32_t detail[2] = {0, 0};
        int status = clients_is_admin(c->config.clients, cl, detail);
        if (status) {
            refuse_client(c, cl, status, detail);
            return;
        }
    }
    if (cl->quota->commands_turn != c->turn)
        cl->quota->n_commands = 0;
    cl->quota->commands_turn = c->turn;
    cl->quota->n_commands++;
    struct reply *reply = replies_take(c->replies, cl);
    if (!reply) {
        replies_send_status(c->replies, cl, CB_BUSY);
        return;
    }
    int status = c->config.command(c->config.daemon, cl, command, argument, &reply->text);
    if (cl->state != CLIENT_ADMIN)
        return;
    if (status != CONTROL_LATER)
        control_answer(c, cl, status);
    else if (loop_change(c->config.loop, &cl->sock, 0)) /* only its end is news */
        clients_close(c->config.clients, cl, CB_CLOSED_NO);
}

struct buf *control_reply(const struct client *who)
{
    struct reply *reply = who->reply;
    return &reply->text;
}

void control_answer(struct control *c, struct client *who, int status)
{
    struct reply *reply = who->reply;
    reply->status = status;
    replies_send(c->replies, who);
}

/* Its uid gave all the commands that it may in this turn. One that is not known to command yet may
 * speak: of these there are few (uid_half_open). */
static bool must_wait(const struct control *c, const struct client *cl)
{
    return cl->state == CLIENT_ADMIN && cl->quota->commands_turn == c->turn &&
           cl->quota->n_commands >= COMMANDS_A_TURN;
}

/* ---- connections ----------------------------------------------------------------------------- */

static void offend(struct control *c, struct client *cl)
{
    if (++cl->n_offences >= OFFENCES)
        clients_close(c->config.clients, cl, cl->lane ? CB_CLOSED_BROKEN : CB_CLOSED_NO);
}

static void handle_record(struct control *c, struct client *cl, const void *record, size_t n)
{
    enum client_state state = cl->state;
    switch (record_check(record, n)) {
    case CONTROL_HELLO:
        if (state == CLIENT_CONNECTED)
            handle_hello(c, cl, record);
        else
            offend(c, cl);
        return;
    case CONTROL_READY:
        if (state == CLIENT_WELCOMED)
            clients_lane_live(c->config.clients, cl);
        else
            offend(c, cl);
        return;
    case CONTROL_BELL:
        if (state == CLIENT_LIVE) /* that it came has woken the loop, which looks at every lane */
            cb_stats_add(c->config.stats, CB_STAT_bells_received, 1);
        else
            offend(c, cl);
        return;
    case CONTROL_BYE:
        clients_close(c->config.clients, cl, CB_CLOSED_BYE);
        return;
    case CONTROL_ADMIN:
        if (state == CLIENT_CONNECTED || state == CLIENT_ADMIN)
            handle_admin(c, cl, record);
        else
            offend(c, cl);
        return;
    case CONTROL_BAD:
        if (state == CLIENT_CONNECTED) {
            const uint32_t detail[2] = {0, 0};
            refuse_client(c, cl, CB_BAD_RECORD, detail);
        } else {
            offend(c, cl);
        }
        return;
    }
}

/* The handler needs the control, the watch is the client's: the way is through its table. */
static struct control *control_of(const struct client *cl)
{
    return cl->clients->control;
}

/* What a client's socket has to say. */
static void serve(struct control *c, struct client *cl, uint32_t events)
{
    /* Aligned for every record; foreign bytes until checked. */
    _Alignas(8) unsigned char record[CB_RECORD_BYTES];
    if (cl->reply) { /* commands wait until the answer before them is out */
        if (events & LOOP_HUP)
            clients_close(c->config.clients, cl, CB_CLOSED_NO);
        else if (events & LOOP_WRITE)
            replies_send(c->replies, cl);
        return;
    }
    uint32_t lane_id = cl->lane_id;
    for (int i = 0; i < RECORDS_A_TURN; i++) {
        if (cl->state == CLIENT_FREE || cl->state == CLIENT_GONE || cl->lane_id != lane_id ||
            cl->reply || must_wait(c, cl))
            return;
        struct iovec iov = {.iov_base = record, .iov_len = sizeof record};
        struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
        ssize_t n = recvmsg(cl->sock.fd, &message, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 || message.msg_flags & MSG_CTRUNC) {
            /* Its end; an empty record, which looks the same; or a descriptor. */
            clients_close(c->config.clients, cl, CB_CLOSED_BYE);
            return;
        }
        if (message.msg_flags & MSG_TRUNC)
            n = 0; /* longer than any record */
        handle_record(c, cl, record, (size_t)n);
    }
}

static void client_ready(struct loop_watch *w, uint32_t events)
{
    struct client *cl = list_entry(w, struct client, sock);
    struct control *c = control_of(cl);
    struct chores *ch = &c->config.clients->chores;
    struct quota *q = cl->quota;
    bool may = cl->reply || chores_may_serve(ch, cl); /* the answer to what was served */
    if (!may && !(events & LOOP_HUP && chores_may_end(ch)))
        return;
    uint64_t since_ns = chores_now(ch);
    chores_hold(q);
    if (may)
        serve(c, cl, events);
    else /* nobody is there who could be told anything */
        clients_close(c->config.clients, cl, CB_CLOSED_BYE);
    chores_charge(ch, q, &since_ns);
    chores_let_go(ch, q);
}

void control_adopt(struct control *c, int fd, const struct cb_lease *lease)
{
    struct cb_lease own = *lease;
    struct client *cl;
    uint32_t detail[2] = {0, 0};
    int status = clients_connect(c->config.clients, fd, &own, client_ready, &cl, detail);
    if (status) {
        refuse_socket(c, fd, status, detail);
        cb_lease_release(&own);
        close(fd);
    }
}

/* No descriptor left: the one in reserve is given up to accept and end the oldest waiting
 * connection, or the readable listener would spin the loop. */
static bool accept_and_drop(struct control *c)
{
    close(c->spare_fd);
    c->spare_fd = -1;
    int fd = accept4(c->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        struct rlimit files = {0};
        uint32_t detail[2];
        (void)getrlimit(RLIMIT_NOFILE, &files);
        int status = cb_over(CB_LIMIT_FILES, files.rlim_cur, detail);
        refuse_socket(c, fd, status, detail);
        close(fd);
    }
    c->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    log_client(c->config.log, "out of descriptors: a connection was refused; raise the limit (%s)",
               "RLIMIT_NOFILE");
    return fd >= 0;
}

/* False: there was none. */
static bool accept_one(struct control *c)
{
    int fd = accept4(c->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct cb_lease lease;
    if (fd < 0)
        return (errno == EMFILE || errno == ENFILE) && accept_and_drop(c);
    int r = cb_lease_take(&lease, fd);
    if (r) {
        log_client(c->config.log, "can't tell who connected (%s)", strerror(-r));
        close(fd);
        return true;
    }
    control_adopt(c, fd, &lease);
    return true;
}

static void listener_ready(struct loop_watch *w, uint32_t events)
{
    struct control *c = list_entry(w, struct control, listener);
    struct chores *ch = &c->config.clients->chores;
    bool more = true;
    (void)events;
    for (int i = 0; i < ACCEPTS_A_TURN && more && chores_may_accept(ch); i++) {
        uint64_t since_ns = chores_now(ch);
        more = accept_one(c);
        chores_charge(ch, NULL, &since_ns);
    }
}

int control_listen(struct control *c, int listen_fd)
{
    c->listener.fd = listen_fd;
    c->listener.ready = listener_ready;
    c->config.clients->chores.listener = &c->listener;
    return loop_watch(c->config.loop, &c->listener, LOOP_READ);
}
