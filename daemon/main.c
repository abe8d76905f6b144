/* cbd: parse, open, run, close. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/admin.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "daemon/guard.h"
#include "daemon/handed.h"
#include "daemon/model/model.h"
#include "daemon/model/vocabulary.h"
#include "daemon/named.h"
#include "daemon/notify.h"
#include "daemon/place.h"
#include "daemon/privileges.h"
#include "daemon/sandbox.h"
#include "kernels/kernels.h"
#include "shm/stdio_hold.h"

#define VERSION   "1.0.0"
#define SECOND_NS 1000000000ull

extern char **environ;

enum { DESCRIPTORS_MIN = 64 };

struct program {
    struct settings settings;
    struct log log;
    struct place place;
    struct loop *loop;
    struct model *model;
    struct cb_status_segment status;
    struct cb_segment vocab;
    int vocab_fd, status_guard;
    struct named named;
    struct daemon *daemon;
    struct loop_watch signals;
    struct notify notify;
    struct loop_timer alive; /* the next sign of life */
    gid_t socket_group, admin_group;
    bool has_terminal;       /* which may hang up */
    uint64_t load_logged_ns; /* the last line about it, or its beginning */
};

static int fatal(struct program *p, const char *message)
{
    log_error(&p->log, "%s", message);
    return -1;
}

static void warn(void *ctx, const char *text)
{
    log_warnx(ctx, "%s", text);
}

/* The next signal that came and asks for the end; NULL: none. */
static const char *next_end(struct program *p)
{
    struct signalfd_siginfo info;
    while (read(p->signals.fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGHUP)
            return info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT";
        if (p->has_terminal)
            return "SIGHUP";
        log_info(&p->log, "SIGHUP changes nothing: `cbctl settings` does, or a new start");
    }
    return NULL;
}

static void signal_ready(struct loop_watch *w, uint32_t events)
{
    struct program *p = list_entry(w, struct program, signals);
    const char *name;
    (void)events;
    while ((name = next_end(p))) {
        if (p->daemon->state == DAEMON_SERVING) {
            daemon_drain(p->daemon, name);
        } else if (strcmp(name, "SIGHUP") != 0) { /* shell and terminal may both send that one */
            log_warnx(&p->log, "a second signal: stopping at once");
            daemon_stop(p->daemon);
        }
    }
}

/* SIGTERM, SIGINT and SIGHUP come as a descriptor. Blocked before any thread is made, so that all
 * inherit it. SIGHUP says that the terminal is gone, where there is one; elsewhere it is what
 * supervisors and log rotation send to have files read again, of which there are none, and must not
 * end the service. Under nohup it stays ignored: blocked, it would come all the same. */
static int open_signals(struct program *p)
{
    struct sigaction hangup;
    sigset_t set;
    int terminal = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    p->has_terminal = terminal >= 0;
    if (terminal >= 0)
        close(terminal);
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) < 0)
        return -errno;
    if (hangup.sa_handler != SIG_IGN)
        sigaddset(&set, SIGHUP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0 || signal(SIGPIPE, SIG_IGN) == SIG_ERR)
        return -errno;
    p->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    p->signals.ready = signal_ready;
    return p->signals.fd < 0 ? -errno : 0;
}

/* Two descriptors a client, four more while it is welcomed. With too few the first to come would be
 * refused one by one; better to say so at once. */
static int raise_descriptors(struct program *p)
{
    struct rlimit limit;
    char message[128];
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max >= DESCRIPTORS_MIN)
        return 0;
    snprintf(message, sizeof message,
             "RLIMIT_NOFILE allows %llu open files and cbd needs %d; raise it (ulimit -n)",
             (unsigned long long)limit.rlim_max, DESCRIPTORS_MIN);
    return fatal(p, message);
}

static enum dtype kv_dtype(const char *name)
{
    return strcmp(name, "u8") == 0 ? DTYPE_U8 : strcmp(name, "f32") == 0 ? DTYPE_F32 : DTYPE_BF16;
}

static uint64_t pool_bytes(const struct settings *set)
{
    return set->cpu_offload_space < 0 ? MODEL_POOL_ALL
                                      : (uint64_t)(set->cpu_offload_space * 0x1p30);
}

/* One line a second once it takes longer than that. Whoever wants the daemon to end does not have
 * to wait until it is ready. */
static int load_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    struct program *p = ctx;
    uint64_t now = clock_now(&clock_monotonic);
    const char *name = next_end(p);
    if (name) {
        log_info(&p->log, "%s while %s is loaded", name, p->settings.model);
        return -ECANCELED;
    }
    if (now - p->load_logged_ns < SECOND_NS)
        return 0;
    p->load_logged_ns = now;
    notify_send(&p->notify, "EXTEND_TIMEOUT_USEC=20000000"); /* it goes on */
    log_info(&p->log, "loads %s: %llu of %llu MiB", p->settings.model,
             (unsigned long long)(done_bytes >> 20), (unsigned long long)(total_bytes >> 20));
    return 0;
}

static int open_model(struct program *p)
{
    const struct settings *set = &p->settings;
    char message[MODEL_MESSAGE_MAX] = "";
    const struct settings_facts facts = daemon_facts(NULL);
    struct settings_resolved resolved;
    settings_resolve(set, &facts, &resolved);
    const struct model_config config = {
        .path = set->model,
        .backend = set->backend,
        .backend_config = {.n_threads = set->threads == SETTING_NONE ? 0 : (uint32_t)set->threads,
                           .isa = set->isa,
                           .pin_threads = set->pin_threads,
                           .batch_variant = !set->batch_invariant},
        .kv_dtype = kv_dtype(resolved.kv_dtype),
        .page_size = resolved.page_size,
        .n_blocks = set->num_blocks == SETTING_NONE ? 0 : (uint32_t)set->num_blocks,
        .max_memory_percent = set->max_memory_percent < 0 ? 0 : set->max_memory_percent,
        .pool_bytes = pool_bytes(set),
        .pool_share = set->cpu_offload_space_safety_threshold,
        .max_batch_tokens = resolved.max_batch_tokens,
        .max_batch_seqs = resolved.max_requests_per_batch,
        .null_vocab = (uint32_t)set->null_vocab,
        .null_context = (uint32_t)set->null_context,
        .null_step_us = (uint32_t)set->null_step_us,
        .without_uring = strcmp(set->loop, "epoll") == 0,
        .progress = load_progress,
        .progress_ctx = p,
    };
    p->load_logged_ns = clock_now(&clock_monotonic);
    int r = model_open(&p->model, &config, message);
    return r && r != -ECANCELED ? fatal(p, message) : r;
}

/* VOCAB, and STATUS: what every client gets. */
static int open_segments(struct program *p)
{
    const struct vocab_image *image = model_vocab(p->model);
    size_t bytes = vocab_image_bytes(image);
    char message[REFUSE_MESSAGE_MAX];
    struct cb_why why;
    mode_t mode = p->socket_group == (gid_t)-1 ? 0644 : 0640;
    if (cb_segment_make_sealable(&p->vocab, &p->vocab_fd, "cbd-vocab", bytes, &why))
        return fatal(p, why.text);
    memcpy(p->vocab.base, vocab_image_data(image), bytes);
    if (cb_segment_seal(&p->vocab, &p->vocab_fd, &why))
        return fatal(p, why.text);
    if (cb_status_segment_make(&p->status, p->settings.instance, sizeof(struct cb_stats_page), mode,
                               p->socket_group, &why))
        return fatal(p, why.text);
    p->status_guard = guard_install() < 0 ? -1 : guard_add(p->status.map.base, p->status.map.bytes);
    if (p->status_guard < 0)
        return fatal(p, "can't guard the STATUS page");
    return named_open(&p->named, &p->settings, &p->vocab, message) ? fatal(p, message) : 0;
}

static int open_daemon(struct program *p)
{
    const struct settings *set = &p->settings;
    enum loop_kind kind = strcmp(set->loop, "uring") == 0   ? LOOP_URING
                          : strcmp(set->loop, "epoll") == 0 ? LOOP_EPOLL
                                                            : LOOP_AUTO;
    /* A socket and a pidfd for each connection, signals, the listener. */
    uint32_t n_watches = 2 * ((uint32_t)set->max_lanes + CLIENTS_SPARE) + 2;
    char sandbox[SANDBOX_WORDS_MAX];
    struct cb_stats_boot boot;
    sandbox_words(set->sandbox, p->named.uids.n > 0, sandbox);
    int r = loop_new(&p->loop, kind, n_watches, &clock_monotonic, &p->log);
    if (r) {
        errno = -r;
        log_warn(&p->log, "can't wait with %s; set loop to epoll", set->loop);
        return r;
    }
    struct daemon_config config = {
        .settings = &p->settings,
        .clock = &clock_monotonic,
        .log = &p->log,
        .loop = p->loop,
        .model = p->model,
        .stats = p->status.map.base,
        .status_name = p->status.name,
        .vocab_name = p->named.uids.n > 0 ? p->named.vocab.base : NULL,
        .status_fd = p->status.fd,
        .status_guard = p->status_guard,
        .vocab_fd = p->vocab_fd,
        .status_bytes = p->status.map.bytes,
        .vocab_bytes = p->vocab.bytes,
        .admin_group = p->admin_group,
        .named_uids = p->named.uids,
        .command = admin_command,
        .sandbox = sandbox,
    };
    if (getrandom(config.boot_id, sizeof config.boot_id, 0) != (ssize_t)sizeof config.boot_id)
        return fatal(p, "can't get random numbers for the boot id");
    daemon_boot(&config, VERSION, (uint64_t)time(NULL), &boot);
    config.sandbox = NULL; /* the page has it */
    cb_stats_init(config.stats, &boot);
    return daemon_new(&p->daemon, &config);
}

/* As root: makes the run directory, then is root no more, or one without capabilities. */
static int drop_privileges(struct program *p)
{
    const struct settings *set = &p->settings;
    char message[PRIVILEGES_MESSAGE_MAX];
    struct privileges who;
    int r = privileges_find(&who, set->user, message);
    if (r == 0 && who.uid != (uid_t)-1)
        r = place_give(&p->place, set, who.uid, who.gid, message);
    if (r == 0)
        r = privileges_drop(&who, p->socket_group, set->sandbox, message);
    return r ? fatal(p, message) : 0;
}

static void alive_due(struct loop_timer *t)
{
    struct program *p = list_entry(t, struct program, alive);
    notify_send(&p->notify, "WATCHDOG=1");
    loop_timer_set(p->loop, t, clock_now(&clock_monotonic) + p->notify.interval_ns);
}

static int start(struct program *p)
{
    char message[PLACE_MESSAGE_MAX];
    const struct settings *set = &p->settings;
    int r = open_signals(p);
    if (r)
        return fatal(p, "can't take signals as a descriptor");
    if (raise_descriptors(p))
        return -1;
    if (place_group(set->socket_group, "socket_group", &p->socket_group, message) ||
        place_group(set->admin_group, "admin_group", &p->admin_group, message))
        return fatal(p, message);
    if (drop_privileges(p))
        return -1;
    if (place_take(&p->place, set, p->socket_group, message))
        return fatal(p, message);
    r = open_model(p);
    if (r == 0)
        r = open_segments(p);
    if (r == 0)
        r = open_daemon(p);
    if (r)
        return r;
    if (p->place.is_second)
        log_info(&p->log, "takes the place of the daemon that serves");
    if (p->place.is_second && place_take_over(&p->place, set, p->socket_group, message))
        return fatal(p, message);
    if (place_show_status(&p->place, p->status.name, message) ||
        (!p->place.is_second && handed_listener(&p->place, set, message)))
        return fatal(p, message);
    if (p->place.listen_fd < 0 && place_listen(&p->place, set, p->socket_group, message))
        return fatal(p, message);
    r = control_listen(p->daemon->control, p->place.listen_fd);
    if (r == 0)
        r = loop_watch(p->loop, &p->signals, LOOP_READ);
    if (r) {
        errno = -r;
        log_warn(&p->log, "can't watch the socket");
        return r;
    }
    if (set->sandbox && sandbox_is_possible() &&
        sandbox_enter(p->named.uids.n > 0, p->log.fd, message))
        return fatal(p, message);
    return 0;
}

/* What was given and does nothing here. batch_invariant has a line of its own. */
static void report_idle(struct program *p)
{
    const struct settings_facts facts = daemon_facts(p->model);
    for (uint32_t i = 0; i < SETTINGS_COUNT; i++) {
        const char *why = settings_idle(&p->settings, &facts, i);
        if (why && p->settings.sources[i] != SETTINGS_DEFAULT && i != SETTINGS_ROW_batch_invariant)
            log_info(&p->log, "%s is idle: %s", settings_row(i)->name, why);
    }
}

static void report_pool(struct program *p)
{
    const struct model_info *info = model_info(p->model);
    uint64_t bytes = (uint64_t)info->n_pool_blocks * info->block_bytes;
    uint64_t wanted = pool_bytes(&p->settings);
    if (wanted == 0)
        return;
    if (info->n_pool_blocks == 0)
        log_warnx(
            &p->log,
            "cpu_offload_space has no room for a block of %zu bytes: nothing is put aside; raise "
            "it, or cpu_offload_space_safety_threshold, or free memory",
            info->block_bytes);
    else if (wanted != MODEL_POOL_ALL && wanted - bytes >= info->block_bytes)
        log_warnx(
            &p->log,
            "cpu_offload_space is cut to %.0f MiB by cpu_offload_space_safety_threshold: free "
            "memory, or raise that",
            (double)bytes / 0x1p20);
    if (info->n_pool_blocks > 0) {
        char words[256];
        daemon_say_pinned(info, words, sizeof words);
        log_info(&p->log, "%u blocks beside the cache, %.0f MiB, for what is preempted: %s",
                 info->n_pool_blocks, (double)bytes / 0x1p20, words);
    }
}

static void report(struct program *p)
{
    const struct model_info *info = model_info(p->model);
    log_info(
        &p->log, "serves %s (%s, %s %s) at %s: vocabulary %u, context %u, %u blocks of %u tokens",
        info->name, info->arch, info->caps.name[0] ? info->caps.name : "no backend", info->caps.isa,
        p->place.path, info->n_vocab, info->n_context, info->n_blocks, info->page_size);
    if (!p->settings.batch_invariant && info->caps.bf16_tokens)
        log_info(&p->log, "results depend on the batch: products of %u tokens and more are in bf16",
                 info->caps.bf16_tokens);
    else if (!p->settings.batch_invariant)
        log_info(&p->log, "batch_invariant is false, but idle: %s", info->caps.bf16_refusal);
    report_idle(p);
    report_pool(p);
    named_report(&p->named, &p->settings, info->n_vocab, info->n_context, &p->log);
    if (p->place.refuses_descriptors)
        log_info(&p->log, "socket mode %04o; the kernel keeps descriptors away (SO_PASSRIGHTS)",
                 (unsigned)p->place.mode);
    else
        log_warnx(&p->log, "socket mode %04o: this kernel can't keep descriptors away, so %s",
                  (unsigned)p->place.mode,
                  p->settings.socket_trust
                      ? "every user who connects is trusted (socket_trust)"
                      : "only root and this user may connect; see socket_trust");
    char words[SANDBOX_WORDS_MAX];
    sandbox_words(p->settings.sandbox, p->named.uids.n > 0, words);
    log_info(&p->log, "sandbox %s", words);
    puts("ready");
    fflush(stdout);
    notify_send(&p->notify, "READY=1");
    if (p->notify.interval_ns)
        alive_due(&p->alive);
}

static void stop(struct program *p)
{
    if (p->loop)
        loop_unwatch(p->loop, &p->signals);
    loop_timer_clear(&p->alive);
    notify_close(&p->notify);
    daemon_free(p->daemon);
    /* Before all that takes time: another one may wait for this place. */
    place_release(&p->place);
    loop_free(p->loop);
    model_free(p->model);
    cb_segment_unmap(&p->vocab);
    if (p->vocab_fd >= 0)
        close(p->vocab_fd);
    named_close(&p->named);
    cb_status_segment_fini(&p->status);
    if (p->signals.fd >= 0)
        close(p->signals.fd);
}

int main(int argc, char **argv)
{
    static struct program program; /* large, and zeroed */
    struct program *p = &program;
    char message[SETTINGS_MESSAGE_MAX];
    cb_stdio_hold();
    p->place.lock_fd = p->place.listen_fd = p->place.next_fd = p->vocab_fd = p->signals.fd = -1;
    p->status.lock_fd = p->status.fd = -1;
    log_init(&p->log, STDERR_FILENO, LOG_LEVEL_INFO, &clock_monotonic);
    int r = settings_load(&p->settings, argc, argv, environ, &(struct settings_warn){warn, &p->log},
                          message);
    if (r == SETTINGS_HELP) {
        settings_help(stdout);
        return fflush(stdout) || ferror(stdout) ? 1 : 0;
    }
    if (r == SETTINGS_VERSION) {
        printf("cbd %s, lane format %u\n", VERSION, CB_FORMAT);
        return fflush(stdout) || ferror(stdout) ? 1 : 0;
    }
    if (r < 0) {
        fatal(p, message);
        return 2;
    }
    if (!p->settings.model[0]) {
        fatal(p, "no model is set; give --model FILE, or --model null");
        return 2;
    }
    kernels_thread_init();
    loop_timer_init(&p->alive, alive_due);
    notify_open(&p->notify);
    r = start(p);
    if (r == 0) {
        daemon_settings_changed(p->daemon);
        report(p);
        while (p->daemon->state == DAEMON_SERVING)
            daemon_turn(p->daemon);
        notify_send(&p->notify, "STOPPING=1");
        while (p->daemon->state != DAEMON_STOPPED)
            daemon_turn(p->daemon);
    }
    if (r == -ECANCELED)
        r = 0; /* it was asked to end while it started */
    if (r == 0)
        log_info(&p->log, "stopped");
    stop(p);
    return r ? 1 : 0;
}
