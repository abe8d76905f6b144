/* Those who watch: what the STATUS page counts of a real daemon, and cbctl's ways to show it. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/fixture.h"
#include "tests/util/prometheus.h"
#include "tools/serve.h"

TestSuite(watching, .timeout = 120);

enum { N_REQUESTS = 8, N_NEW = 10 };

static void start_null(struct system *s)
{
    system_init(s);
    system_start(s, SETTINGS("--model", "null"));
}

static void bench(const struct system *s)
{
    json_t *o = system_cbctl(
        s, SETTINGS("bench", "--requests", "8", "--prompt-tokens", "16", "--new-tokens", "10"));
    json_decref(o);
    system_settle(s);
}

static struct output cbctl(const struct system *s, const char *const *words)
{
    const char *arguments[16] = {"-i", s->instance};

    for (size_t n = 2; *words && n < 15; n++)
        arguments[n] = *words++;
    return system_run(s, NULL, "cbctl", arguments);
}

static json_int_t number(const json_t *o, const char *first, const char *second)
{
    const json_t *value = json_object_get(json_object_get(o, first), second);

    cr_assert(json_is_integer(value), "no %s.%s", first, second);
    return json_integer_value(value);
}

/* ---- what is counted ------------------------------------------------------------------------- */

Test(watching, histograms_count_each_token_request_and_step_once)
{
    struct system s;
    const char *name;
    json_t *o, *timing, *histograms, *bucket;

    start_null(&s);
    bench(&s); /* a round of one token each, and one of all */
    o = system_cbctl(&s, SETTINGS("status"));
    histograms = json_object_get(o, "histograms");
    cr_expect_eq(number(histograms, "time_to_first_token_ns", "count"), 2 * N_REQUESTS);
    cr_expect_eq(number(histograms, "time_between_tokens_ns", "count"), N_REQUESTS * (N_NEW - 1));
    cr_expect_eq(number(histograms, "request_queued_ns", "count"), 2 * N_REQUESTS);
    cr_expect_eq(number(histograms, "request_total_ns", "count"), 2 * N_REQUESTS);
    cr_expect_eq(number(histograms, "step_model_ns", "count"), number(o, "counters", "steps"));
    cr_expect_eq(number(histograms, "step_model_ns", "sum"), number(o, "counters", "model_ns"));
    cr_expect_eq(number(histograms, "step_own_ns", "count"), number(o, "counters", "steps"));
    cr_expect_leq(number(histograms, "request_queued_ns", "sum"),
                  number(histograms, "time_to_first_token_ns", "sum"));
    cr_expect_eq(number(o, "counters", "intake_ns") + number(o, "counters", "schedule_ns") +
                     number(o, "counters", "deliver_ns"),
                 number(o, "counters", "own_ns"));
    cr_expect_gt(number(o, "counters", "schedule_ns"), 0);
    cr_expect_gt(number(o, "counters", "deliver_ns"), 0);
    json_object_foreach(histograms, name, timing)
    {
        json_int_t n = 0, last = 0;
        size_t i;

        json_array_foreach(json_object_get(timing, "buckets"), i, bucket)
        {
            const json_t *le = json_object_get(bucket, "le");

            n += json_integer_value(json_object_get(bucket, "count"));
            cr_expect(json_is_null(le) || json_integer_value(le) > last, "%s", name);
            last = json_integer_value(le);
        }
        cr_expect_eq(n, number(histograms, name, "count"), "%s", name);
        cr_expect_leq(number(histograms, name, "p50"), number(histograms, name, "p90"));
        cr_expect_leq(number(histograms, name, "p90"), number(histograms, name, "p99"));
        cr_expect_leq(number(histograms, name, "p99"), last, "%s", name);
    }
    json_decref(o);
    system_fini(&s);
}

/* A request that is cancelled while it waits never ran: it has no time in the queue, but an end. */
Test(watching, what_never_ran_was_not_queued_for_any_time)
{
    struct system s;
    struct cb_handle *h;
    struct cb_request r;
    const uint32_t prompt[] = {1, 2, 3};
    uint64_t ids[2];
    json_t *o;

    system_init(&s);
    system_start(&s, SETTINGS("--model", "null", "--null_step_us", "20000",
                              "--max_requests_per_batch", "1"));
    h = system_open(&s, NULL);
    cb_request_init(&r);
    r.ids = prompt;
    r.n_ids = 3;
    r.max_new_tokens = 10000;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(cb_submit(h, &r, &ids[i]), 0);
    system_await(&s, "requests_active", 1);
    system_await(&s, "requests_waiting", 1);
    for (int i = 2; i-- > 0;) {
        cr_assert_eq(cb_cancel(h, ids[i]), 0);
        system_await(&s, "requests_cancelled", (uint64_t)(2 - i));
    }
    cb_close(h);
    system_settle(&s);
    o = system_cbctl(&s, SETTINGS("status"));
    cr_expect_eq(number(json_object_get(o, "histograms"), "request_total_ns", "count"), 2);
    cr_expect_eq(number(json_object_get(o, "histograms"), "request_queued_ns", "count"), 1);
    json_decref(o);
    system_fini(&s);
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void expect_metrics(const char *text)
{
    static struct prometheus p;
    const struct prometheus_sample *s;

    cr_assert_eq(prometheus_read(&p, text), 0, "%s", p.why);
    s = prometheus_find(&p, "cbd_requests_finished_total", "model=\"null\"");
    cr_expect(s && s->value == 2 * N_REQUESTS);
    s = prometheus_find(&p, "cbd_time_between_tokens_seconds_count", NULL);
    cr_expect(s && s->value == N_REQUESTS * (N_NEW - 1));
    s = prometheus_find(&p, "cbd_state", "state=\"serving\"");
    cr_expect(s && s->value == 1);
}

Test(watching, metrics_prints_prometheus_text)
{
    struct system s;
    struct output o;

    start_null(&s);
    bench(&s);
    o = cbctl(&s, SETTINGS("metrics"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    expect_metrics(o.out);
    output_free(&o);
    o = cbctl(&s, SETTINGS("--json", "metrics"));
    cr_expect_eq(o.status, 2);
    output_free(&o);
    o = cbctl(&s, SETTINGS("metrics", "--listen", "9x"));
    cr_expect_eq(o.status, 2);
    output_free(&o);
    system_fini(&s);
    o = cbctl(&s, SETTINGS("metrics"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "no daemon"), "%s", o.err);
    output_free(&o);
}

/* cbctl metrics --listen where: running, and what it printed. */
static struct running listen_begin(const struct system *s, const char *where, char url[256])
{
    struct running r = system_run_begin(
        s, NULL, "cbctl",
        (const char *const[]){"-i", s->instance, "metrics", "--listen", where, NULL});
    uint64_t end = now_ms() + HANG_MS;
    ssize_t n = 0;

    while (n < 1 || url[n - 1] != '\n') {
        n = pread(r.out_fd, url, 255, 0);
        cr_assert_lt(now_ms(), end, "it does not say where it listens");
        nap();
    }
    url[n - 1] = 0;
    return r;
}

static void listen_end(struct running *r)
{
    struct output o;

    kill(r->pid, SIGTERM);
    o = system_run_end(r);
    cr_expect_eq(o.status, 0, "SIGTERM gives %d: %s", o.status, o.err);
    output_free(&o);
}

static int visit(const char *url)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    unsigned port;
    int fd, r;

    if (sscanf(url, "http://127.0.0.1:%u/metrics", &port) == 1) {
        in.sin_port = htons((uint16_t)port);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        r = connect(fd, (const struct sockaddr *)&in, sizeof in);
    } else {
        cr_assert_eq(strncmp(url, "unix:", 5), 0, "%s", url);
        snprintf(un.sun_path, sizeof un.sun_path, "%s", url + 5);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        r = connect(fd, (const struct sockaddr *)&un, sizeof un);
    }
    cr_assert_eq(r, 0, "can't connect to %s: %s", url, strerror(errno));
    return fd;
}

/* Sends a request and reads until the other side closes: into a static buffer. */
static const char *ask_on(int fd, const char *request)
{
    static char answer[1 << 17];
    size_t n = 0;

    cr_assert_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t k;

        cr_assert_eq(poll(&p, 1, HANG_MS), 1, "no answer");
        k = read(fd, answer + n, sizeof answer - 1 - n);
        if (k <= 0)
            break;
        n += (size_t)k;
    }
    close(fd);
    answer[n] = 0;
    return answer;
}

static const char *ask(const char *url, const char *request)
{
    return ask_on(visit(url), request);
}

#define REQUEST(method, path) method " " path " HTTP/1.1\r\nHost: localhost\r\n\r\n"

static void expect_status(const char *url, const char *request, int status)
{
    const char *answer = ask(url, request);
    char begin[24];

    snprintf(begin, sizeof begin, "HTTP/1.1 %d ", status);
    cr_expect_eq(strncmp(answer, begin, strlen(begin)), 0, "not %d to %.40s: %.200s", status,
                 request, answer);
}

static void expect_answers(const char *url)
{
    const char *answer = ask(url, REQUEST("GET", "/metrics"));
    const char *body = strstr(answer, "\r\n\r\n");

    cr_assert(strncmp(answer, "HTTP/1.1 200 ", 13) == 0 && body, "%.200s", answer);
    cr_expect(strstr(answer, "Content-Type: text/plain; version=0.0.4"));
    expect_metrics(body + 4);
    answer = ask(url, REQUEST("HEAD", "/metrics"));
    body = strstr(answer, "\r\n\r\n");
    cr_expect(strncmp(answer, "HTTP/1.1 200 ", 13) == 0 && body && !body[4], "%.200s", answer);
    expect_status(url, REQUEST("GET", "/metrics?x=1"), 200);
    expect_status(url, REQUEST("GET", "/"), 404);
    expect_status(url, REQUEST("GET", "/metrics/"), 404);
    expect_status(url, REQUEST("POST", "/other"), 404);
    expect_status(url, REQUEST("DELETE", "/metrics"), 405);
    expect_status(url, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nab",
                  405);
    answer = ask(url, REQUEST("PUT", "/metrics"));
    cr_expect(strstr(answer, "\r\nAllow: GET, HEAD\r\n"), "%.200s", answer);
    ask(url, "nonsense\r\n\r\n"); /* no matter what it says, if it ends */
    expect_status(url, REQUEST("GET", "/metrics"), 200);
}

Test(watching, metrics_are_served_at_a_port)
{
    struct system s;
    struct running r, other;
    struct output o;
    char url[256], port[16];

    start_null(&s);
    bench(&s);
    r = listen_begin(&s, "0", url);
    expect_answers(url);
    snprintf(port, sizeof port, "%s", strrchr(url, ':') + 1);
    *strchr(port, '/') = 0;
    other = system_run_begin(
        &s, NULL, "cbctl",
        (const char *const[]){"-i", s.instance, "metrics", "--listen", port, NULL});
    o = system_run_end(&other);
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "in use"), "%s", o.err);
    output_free(&o);
    system_settle(&s); /* it has no lane, and nothing of it is held */
    system_fini(&s);
    expect_status(url, REQUEST("GET", "/metrics"), 503);
    cr_expect(strstr(ask(url, REQUEST("GET", "/metrics")), "no daemon serves this instance"));
    listen_end(&r);
}

/* What another daemon of the same name says next is what is served. */
Test(watching, metrics_follow_a_daemon_that_starts_again)
{
    struct system s;
    struct running r;
    char url[256];

    start_null(&s);
    r = listen_begin(&s, "0", url);
    system_signal(&s, SIGKILL);
    system_wait(&s);
    expect_status(url, REQUEST("GET", "/metrics"), 503);
    system_start(&s, SETTINGS("--model", "null"));
    bench(&s);
    expect_answers(url);
    system_fini(&s);
    listen_end(&r);
}

Test(watching, metrics_are_served_at_a_unix_socket)
{
    struct system s;
    struct running r;
    struct output o;
    char path[128], url[256];
    int fd;

    start_null(&s);
    bench(&s);
    snprintf(path, sizeof path, "%s/metrics.sock", s.dir);
    r = listen_begin(&s, path, url);
    expect_answers(url);
    o = cbctl(&s, SETTINGS("metrics", "--listen", path));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "somebody listens there"), "%s", o.err);
    output_free(&o);
    expect_answers(url);
    /* Killed, it leaves its socket, which the next one may replace. */
    kill(r.pid, SIGKILL);
    o = system_run_end(&r);
    output_free(&o);
    cr_expect_eq(access(path, F_OK), 0);
    r = listen_begin(&s, path, url);
    expect_answers(url);
    listen_end(&r);
    cr_expect_eq(access(path, F_OK), -1, "the socket is left");
    /* What is not a socket stays. */
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert_eq(write(fd, "mine", 4), 4);
    close(fd);
    o = cbctl(&s, SETTINGS("metrics", "--listen", path));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "it is kept"), "%s", o.err);
    output_free(&o);
    struct stat st;
    cr_expect(stat(path, &st) == 0 && st.st_size == 4);
    system_fini(&s);
}

/* A newer server's socket in the place of ours is not ours to remove. */
Test(watching, only_its_own_socket_is_removed)
{
    struct system s;
    struct running r;
    char path[128], url[256];

    system_init(&s);
    snprintf(path, sizeof path, "%s/metrics.sock", s.dir);
    r = listen_begin(&s, path, url);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(mkfifo(path, 0600), 0);
    listen_end(&r);
    cr_expect_eq(access(path, F_OK), 0);
    system_fini(&s);
}

/* More of them than there are places; who asks must still get an answer. */
Test(watching, visitors_who_say_nothing_keep_nobody_out)
{
    struct system s;
    struct running r;
    char url[256];
    int silent[SERVE_CONNECTIONS + 1];

    start_null(&s);
    bench(&s);
    r = listen_begin(&s, "0", url);
    for (int i = 0; i <= SERVE_CONNECTIONS; i++) {
        silent[i] = visit(url);
        if (i % 2)
            cr_assert_eq(send(silent[i], "GET /met", 8, MSG_NOSIGNAL), 8);
    }
    expect_status(url, REQUEST("GET", "/metrics"), 200);
    for (int i = 0; i <= SERVE_CONNECTIONS; i++)
        close(silent[i]);
    listen_end(&r);
    system_fini(&s);
}

/* ---- top ------------------------------------------------------------------------------------- */

static unsigned count_of(const char *text, const char *part)
{
    unsigned n = 0;

    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

Test(watching, top_prints_plain_text)
{
    struct system s;
    struct output o;

    start_null(&s);
    bench(&s);
    o = cbctl(&s, SETTINGS("top", "--once"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect(strstr(o.out, s.instance) == o.out, "%s", o.out);
    cr_expect(strstr(o.out, "serving"));
    cr_expect(strstr(o.out, "since the daemon's start"));
    cr_expect(strstr(o.out, "16 accepted  0 rejected"), "%s", o.out);
    cr_expect(strstr(o.out, "16 finished  0 cancelled"), "%s", o.out);
    cr_expect_not(strchr(o.out, '\x1b'));
    output_free(&o);
    o = cbctl(&s, SETTINGS("top", "--batch", "-n", "3", "-d", "0.05"));
    cr_expect_eq(o.status, 0, "%s", o.err);
    cr_expect_eq(count_of(o.out, "16 accepted"), 3, "%s", o.out);
    cr_expect_eq(count_of(o.out, "since the daemon's start"), 1);
    cr_expect_eq(count_of(o.out, "of the last 0."), 2, "%s", o.out);
    output_free(&o);
    o = cbctl(&s, SETTINGS("top", "-d", "0"));
    cr_expect_eq(o.status, 2);
    output_free(&o);
    o = cbctl(&s, SETTINGS("top"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "no terminal; --batch"), "%s", o.err);
    output_free(&o);
    system_fini(&s);
    o = cbctl(&s, SETTINGS("top", "--once"));
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "no daemon"), "%s", o.err);
    output_free(&o);
}

Test(watching, top_ends_with_its_daemon)
{
    struct system s;
    struct running r;
    struct output o;
    char text[4096] = "";

    start_null(&s);
    r = system_run_begin(
        &s, NULL, "cbctl",
        (const char *const[]){"-i", s.instance, "top", "--batch", "-d", "0.05", NULL});
    while (!strstr(text, "of the last")) {
        ssize_t n = pread(r.out_fd, text, sizeof text - 1, 0);

        text[n > 0 ? n : 0] = 0;
        nap();
    }
    system_fini(&s);
    o = system_run_end(&r);
    cr_expect_eq(o.status, 1);
    cr_expect(strstr(o.err, "the daemon has ended"), "%s", o.err);
    output_free(&o);
}

struct terminal {
    pid_t pid;
    int fd;
    char text[1 << 16]; /* all that was shown */
    size_t n;
};

/* cbctl top in a terminal of that type (NULL: TERM is not set). */
static void terminal_begin(struct terminal *t, const struct system *s, const char *type)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 80};
    char path[512];

    built("cbctl", path);
    t->n = 0;
    t->pid = forkpty(&t->fd, NULL, NULL, &size);
    if (t->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("CBD_RUNTIME_DIR", s->dir, 1);
        unsetenv("TERM");
        if (type)
            setenv("TERM", type, 1);
        execl(path, path, "-i", s->instance, "top", "-d", "0.05", (char *)NULL);
        _exit(127);
    }
    cr_assert_gt(t->pid, 0);
}

/* Reads what it shows until `part` is among it; NULL: until its end. From here on. */
static void terminal_await(struct terminal *t, const char *part)
{
    t->n = 0;
    for (;;) {
        struct pollfd p = {.fd = t->fd, .events = POLLIN};
        ssize_t k;

        t->text[t->n] = 0;
        if (part && strstr(t->text, part))
            return;
        cr_assert_eq(poll(&p, 1, HANG_MS), 1, "%s is never shown: %s", part ? part : "its end",
                     t->text);
        if (t->n > sizeof t->text / 2)
            t->n = 0;
        k = read(t->fd, t->text + t->n, sizeof t->text - 1 - t->n);
        if (k <= 0)
            break; /* EIO: nobody has it open any more */
        t->n += (size_t)k;
    }
    cr_assert_not(part, "it ended without %s: %s", part, t->text);
}

static int terminal_end(struct terminal *t)
{
    int status;

    terminal_await(t, NULL);
    cr_assert_eq(waitpid(t->pid, &status, 0), t->pid);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

Test(watching, top_on_a_terminal)
{
    static const struct winsize small = {.ws_row = 3, .ws_col = 30}, one = {1, 1, 0, 0},
                                large = {.ws_row = 50, .ws_col = 200};
    static struct terminal t;
    struct system s;

    start_null(&s);
    bench(&s);
    terminal_begin(&t, &s, "xterm");
    terminal_await(&t, "q: quit");
    cr_assert_eq(ioctl(t.fd, TIOCSWINSZ, &small), 0);
    terminal_await(&t, "serving");
    cr_assert_eq(ioctl(t.fd, TIOCSWINSZ, &one), 0);
    cr_assert_eq(ioctl(t.fd, TIOCSWINSZ, &large), 0);
    terminal_await(&t, "q: quit");
    cr_assert_eq(write(t.fd, "x\x1b[Aq", 5), 5);
    cr_expect_eq(terminal_end(&t), 0, "%s", t.text);
    /* SIGTERM, and a terminal that hangs up, end it as well. */
    terminal_begin(&t, &s, "xterm");
    terminal_await(&t, "q: quit");
    kill(t.pid, SIGTERM);
    cr_expect_eq(terminal_end(&t), 0, "%s", t.text);
    cr_expect(strstr(t.text, "\x1b[?1049l"), "the screen is not given back: %s", t.text);
    terminal_begin(&t, &s, "xterm");
    terminal_await(&t, "q: quit");
    close(t.fd);
    cr_assert_eq(waitpid(t.pid, NULL, 0), t.pid);
    /* So does its daemon's end, told where it can be read. */
    terminal_begin(&t, &s, "xterm");
    terminal_await(&t, "q: quit");
    system_fini(&s);
    cr_expect_eq(terminal_end(&t), 1);
    char *given_back = strstr(t.text, "\x1b[?1049l");
    cr_assert(given_back, "%s", t.text);
    cr_expect(strstr(given_back, "the daemon has ended"), "%s", t.text);
}

Test(watching, a_terminal_that_top_cannot_use)
{
    static const struct {
        const char *type, *words;
    } cases[] = {{"dumb", "can't move its cursor"},
                 {"no-such-type", "nothing is known of a terminal of type \"no-such-type\""},
                 {"", "TERM is not set"},
                 {NULL, "TERM is not set"}};
    static struct terminal t;
    struct system s;

    start_null(&s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        terminal_begin(&t, &s, cases[i].type);
        cr_expect_eq(terminal_end(&t), 1);
        cr_expect(strstr(t.text, cases[i].words), "%s", t.text);
        cr_expect(strstr(t.text, "--batch"), "%s", t.text);
    }
    system_fini(&s);
}
