/* libmicrohttpd speaks HTTP; the waiting is ours, so that one thread has signals, connections and
 * their age before it. An answer ends its connection: then a connection's life is bounded, and
 * those who connect and say nothing, or a byte now and then, can't keep others out for long. */
#include "tools/serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tools/metrics.h"

enum { REQUEST_BYTES_MAX = 16384, DEAF_MS = 100 };

struct server {
    struct cbctl ctl;
    int listen_fd;
    const char *path; /* NULL: it is a port */
    struct stat made; /* the socket at path */
    struct MHD_Daemon *http;
    struct visitor {
        int fd; /* -1: none */
        time_t since_s;
    } visitors[SERVE_CONNECTIONS];
};

/* ---- the listening socket -------------------------------------------------------------------- */

static int refuse(struct server *s, const char *where, const char *why)
{
    cbctl_complain(&s->ctl, "can't listen at %s: %s", where, why);
    return -1;
}

static int listen_port(struct server *s, uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    char where[32];
    int on = 1;

    snprintf(where, sizeof where, "127.0.0.1:%u", port);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0 ||
        setsockopt(s->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(s->listen_fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        listen(s->listen_fd, SERVE_CONNECTIONS) < 0 ||
        getsockname(s->listen_fd, (struct sockaddr *)&address, &bytes) < 0)
        return refuse(s, where, strerror(errno));
    printf("http://127.0.0.1:%u/metrics\n", ntohs(address.sin_port));
    return 0;
}

/* Removes a socket that nobody listens at: 0; else -1, and it was told what is there. */
static int remove_stale(struct server *s, const struct sockaddr_un *address)
{
    struct stat st;
    int fd, r, errnum;

    if (lstat(s->path, &st) < 0)
        return refuse(s, s->path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return refuse(s, s->path, "something that is no socket is there; it is kept");
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = fd < 0 ? -1 : connect(fd, (const struct sockaddr *)address, sizeof *address);
    errnum = errno;
    if (fd >= 0)
        close(fd);
    if (r == 0 || errnum == EAGAIN)
        return refuse(s, s->path, "somebody listens there");
    if (errnum != ECONNREFUSED)
        return refuse(s, s->path, strerror(errnum));
    return unlink(s->path) < 0 ? refuse(s, s->path, strerror(errno)) : 0;
}

static int listen_path(struct server *s)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int r;

    if (strlen(s->path) >= sizeof address.sun_path)
        return refuse(s, s->path, "the path is too long for a socket");
    strcpy(address.sun_path, s->path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listen_fd < 0)
        return refuse(s, s->path, strerror(errno));
    r = bind(s->listen_fd, (const struct sockaddr *)&address, sizeof address);
    if (r < 0 && errno == EADDRINUSE) {
        if (remove_stale(s, &address))
            return -1;
        r = bind(s->listen_fd, (const struct sockaddr *)&address, sizeof address);
    }
    if (r < 0 || lstat(s->path, &s->made) < 0 || listen(s->listen_fd, SERVE_CONNECTIONS) < 0)
        return refuse(s, s->path, strerror(errno));
    printf("unix:%s\n", s->path);
    return 0;
}

static void unlisten(struct server *s)
{
    struct stat st;

    if (s->listen_fd >= 0)
        close(s->listen_fd);
    /* Only ours: somebody may have put another one there. */
    if (s->made.st_ino && lstat(s->path, &st) == 0 && st.st_ino == s->made.st_ino &&
        st.st_dev == s->made.st_dev)
        (void)unlink(s->path);
}

/* ---- answers --------------------------------------------------------------------------------- */

/* Takes text, from malloc. */
static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type,
                              char *text, size_t bytes)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
    enum MHD_Result r = MHD_NO;

    if (!response) {
        free(text);
        return MHD_NO;
    }
    if (MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES &&
        (status != MHD_HTTP_METHOD_NOT_ALLOWED ||
         MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES))
        r = MHD_queue_response(c, status, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result answer_words(struct MHD_Connection *c, unsigned status, const char *words)
{
    char *text = NULL;
    int n = asprintf(&text, "%s\n", words);

    return n < 0 ? MHD_NO : answer(c, status, "text/plain; charset=utf-8", text, (size_t)n);
}

static enum MHD_Result answer_metrics(struct server *s, struct MHD_Connection *c)
{
    struct watch w;
    char why[WATCH_WHY_MAX], *text = NULL;
    size_t bytes = 0;
    FILE *out;
    int bad;

    if (watch_take(s->ctl.instance, &w, why))
        return answer_words(c, MHD_HTTP_SERVICE_UNAVAILABLE, why);
    out = open_memstream(&text, &bytes);
    if (!out)
        return MHD_NO;
    metrics_print(out, &w);
    bad = ferror(out);
    if (fclose(out) || bad) {
        free(text);
        return MHD_NO;
    }
    return answer(c, MHD_HTTP_OK, METRICS_TYPE, text, bytes);
}

/* Called when the head of a request is complete. It is answered at once, before any body comes:
 * there is nothing that a body could say. */
static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *n_body, void **request)
{
    (void)version;
    (void)body;
    (void)n_body;
    (void)request;
    if (strcmp(url, "/metrics") != 0)
        return answer_words(c, MHD_HTTP_NOT_FOUND, "there is only /metrics");
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_words(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served");
    return answer_metrics(ctx, c);
}

/* ---- connections ----------------------------------------------------------------------------- */

static time_t now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static void on_connection(void *ctx, struct MHD_Connection *c, void **contextp,
                          enum MHD_ConnectionNotificationCode what)
{
    struct server *s = ctx;
    struct visitor *v = *contextp;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (v)
            v->fd = -1;
        *contextp = NULL;
        return;
    }
    for (unsigned i = 0; i < SERVE_CONNECTIONS; i++) {
        v = &s->visitors[i];
        if (v->fd < 0) {
            v->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
            v->since_s = now_s();
            *contextp = v;
            return;
        }
    }
}

static void end_old(struct server *s)
{
    for (unsigned i = 0; i < SERVE_CONNECTIONS; i++) {
        if (s->visitors[i].fd >= 0 && now_s() - s->visitors[i].since_s >= SERVE_LIFE_S)
            (void)shutdown(s->visitors[i].fd, SHUT_RDWR);
    }
}

static unsigned count_visitors(const struct server *s)
{
    unsigned n = 0;

    for (unsigned i = 0; i < SERVE_CONNECTIONS; i++)
        n += s->visitors[i].fd >= 0;
    return n;
}

/* How long nothing needs to be done, if nobody comes: for ever, without a connection. */
static int wait_ms(struct server *s, bool is_deaf)
{
    MHD_UNSIGNED_LONG_LONG http_ms;
    int ms = is_deaf ? DEAF_MS : count_visitors(s) ? 1000 : -1;

    if (MHD_get_timeout(s->http, &http_ms) == MHD_YES && (ms < 0 || http_ms < (unsigned)ms))
        ms = (int)http_ms;
    return ms;
}

static int run(struct server *s, int signal_fd)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->http, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd p[3] = {{.fd = signal_fd, .events = POLLIN},
                          {.fd = info ? info->epoll_fd : -1, .events = POLLIN}};

    if (p[1].fd < 0) {
        cbctl_complain(&s->ctl, "this libmicrohttpd can't be waited for");
        return CBCTL_FAILED;
    }
    for (bool is_deaf = false;;) {
        unsigned n = count_visitors(s);

        /* When all places were taken the library stops waiting for more, and looks again only when
         * it is run: it is we who see that somebody waits and that there is room. If it then takes
         * nobody, as without descriptors, that must not become a busy loop. */
        p[2] = (struct pollfd){.fd = n < SERVE_CONNECTIONS && !is_deaf ? s->listen_fd : -1,
                               .events = POLLIN};
        if (poll(p, 3, wait_ms(s, is_deaf)) < 0 && errno != EINTR) {
            cbctl_complain(&s->ctl, "can't wait: %s", strerror(errno));
            return CBCTL_FAILED;
        }
        if (p[0].revents)
            return CBCTL_OK;
        end_old(s);
        if (MHD_run(s->http) != MHD_YES) {
            cbctl_complain(&s->ctl, "libmicrohttpd can't go on");
            return CBCTL_FAILED;
        }
        is_deaf = p[2].revents && count_visitors(s) <= n;
    }
}

static int open_listen(struct server *s, const char *where)
{
    uint64_t port;

    if (strchr(where, '/')) {
        s->path = where;
        return listen_path(s) ? CBCTL_FAILED : CBCTL_OK;
    }
    if (!cbctl_whole(&s->ctl, "--listen, unless it is a path with a /,", where, 0, 65535, &port))
        return CBCTL_USAGE;
    return listen_port(s, (uint16_t)port) ? CBCTL_FAILED : CBCTL_OK;
}

int serve(const struct cbctl *ctl, const char *where)
{
    struct server s = {.ctl = *ctl, .listen_fd = -1};
    sigset_t ends;
    int signal_fd, r;

    for (unsigned i = 0; i < SERVE_CONNECTIONS; i++)
        s.visitors[i].fd = -1;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    sigprocmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN); /* who asks may hang up before the answer */
    signal_fd = signalfd(-1, &ends, SFD_CLOEXEC);
    r = open_listen(&s, where);
    if (r == CBCTL_OK && (signal_fd < 0 || fflush(stdout)))
        r = CBCTL_FAILED;
    if (r == CBCTL_OK) {
        s.http = MHD_start_daemon(
            MHD_USE_EPOLL, 0, NULL, NULL, on_request, &s, MHD_OPTION_LISTEN_SOCKET, s.listen_fd,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVE_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
            (unsigned)SERVE_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES_MAX,
            MHD_OPTION_NOTIFY_CONNECTION, on_connection, &s, MHD_OPTION_END);
        if (!s.http)
            cbctl_complain(ctl, "can't start to serve: %s", strerror(errno));
        r = s.http ? run(&s, signal_fd) : CBCTL_FAILED;
    }
    if (s.http) {
        MHD_stop_daemon(s.http); /* closes the listening socket, too */
        s.listen_fd = -1;
    }
    unlisten(&s);
    if (signal_fd >= 0)
        close(signal_fd);
    return r;
}
