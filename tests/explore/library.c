#include "tests/explore/library.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>

#include "client/record.h"
#include "client/resume.h"
#include "client/text.h"
#include "shm/doorbell.h"

enum { FIRST_SOCK = 1000 }; /* of link 0 */

struct library library;

static struct library first; /* as it was built */
static bool is_new;          /* and is not in `first` yet */

/* ---- what the library asks of the system ----------------------------------------------------- */

void *library_allocate(size_t bytes)
{
    void *p = library.heap + library.heap_bytes;

    library.heap_bytes += (bytes + 15) & ~(size_t)15;
    assert(library.heap_bytes <= sizeof library.heap);
    return p;
}

static bool is_dead(int sock)
{
    return sock == FIRST_SOCK && library.is_dead;
}

/* poll, whether the daemon has hung up. */
long library_syscall(long number, ...)
{
    va_list args;
    va_start(args, number);
    struct pollfd *p = va_arg(args, struct pollfd *);
    va_end(args);
    assert(number == SYS_ppoll);
    p->revents = is_dead(p->fd) ? POLLHUP : 0;
    return p->revents != 0;
}

void library_close(int fd)
{
    explore_unmap(&library.socks[fd - FIRST_SOCK]);
}

uint64_t cb_now_ns(void)
{
    return library.now_ns[explore_self()];
}

uint64_t cb_now_coarse_ns(void)
{
    return 0; /* it is too early to look for a sign of life */
}

int cb_doorbell_wait(const cb_atomic32 *bell, uint32_t seen, uint64_t timeout_ns)
{
    if (library.naps >> explore_self() & 1) {
        explore_kernel();
        (void)cb_load32(bell, CB_RELAXED); /* the kernel does */
        library.now_ns[explore_self()] += timeout_ns + 1000000000u;
        return -ETIMEDOUT;
    }
    if (library.times_out >> explore_self() & 1 && explore_choose(2)) {
        explore_kernel();
        library.now_ns[explore_self()] += timeout_ns + 1000000000u;
        return -ETIMEDOUT;
    }
    explore_futex_wait(bell, seen);
    return 0;
}

int cb_doorbell_wake(cb_atomic32 *bell)
{
    explore_futex_wake(bell);
    return 0;
}

int cb_doorbell_send(int sock, enum cb_record_type type)
{
    explore_claim(type == CB_RECORD_BELL, "another record than a bell was sent");
    explore_kernel();
    (void)cb_load32(&library.socks[sock - FIRST_SOCK], CB_RELAXED);
    if (is_dead(sock))
        return -EPIPE;
    world.daemon_bells++;
    return 0;
}

void cb_segment_unmap(struct cb_segment *segment)
{
    if (segment->base)
        explore_unmap(segment->base);
    segment->base = NULL;
}

int cb_find_socket_now(const struct cb_options *options)
{
    (void)options;
    return FIRST_SOCK + (int)library.n_links;
}

int cb_connect_hello(int sock, const struct cb_options *options)
{
    (void)options;
    return is_dead(sock) ? CB_LOST : 0;
}

static struct cb_link *make_link(void)
{
    uint32_t i = library.n_links++;
    struct cb_link *link = &library.links[i];
    const struct cb_geometry *g = world_geometry();

    assert(i < LIBRARY_LINKS);
    link->sock = FIRST_SOCK + (int)i;
    link->geometry = *g;
    link->features = CB_FEATURE_RESUME;
    link->up = (struct cb_segment){world.up, g->up_bytes};
    link->down = (struct cb_segment){world.down, g->down_bytes};
    link->lane = world.client;
    link->of_slot = library.of_slot[i];
    cb_arena_init(&link->arena, library.pieces[i], g->n_slots, g->up_arena_bytes, 8);
    return link;
}

static void map(const struct cb_link *link)
{
    explore_map(link->up.base, link->up.bytes, library.threads);
    explore_map(link->down.base, link->down.bytes, library.threads);
    explore_map(&library.socks[link->sock - FIRST_SOCK], sizeof library.socks[0], library.threads);
}

int cb_connect_answer(struct cb_handle *h, int sock, const struct cb_options *options, int wait_ms,
                      struct cb_link **linkp, uint32_t detail[2])
{
    (void)h;
    (void)options;
    (void)wait_ms;
    (void)detail;
    (void)sock;
    *linkp = make_link();
    map(*linkp);
    return 0;
}

/* ---- what it has elsewhere, and no case asks for --------------------------------------------- */

int cb_fail(int status)
{
    return status;
}

int cb_fail_errno(const char *where, int errnum)
{
    (void)where;
    (void)errnum;
    return CB_SYSTEM;
}

struct cb_text *cb_text_free(struct cb_text *text)
{
    return text;
}

void cb_fill_result_locked(struct cb_handle *h, struct cb_held *q, struct cb_result *result)
{
    (void)h;
    (void)q;
    (void)result;
    abort();
}

void cb_semaphore_empty(void *page)
{
    (void)page;
    abort();
}

int cb_semaphore_wait(void *page, uint64_t timeout_ns)
{
    (void)page;
    (void)timeout_ns;
    abort();
}

/* ---- the handle ------------------------------------------------------------------------------ */

void library_init(const struct world_shape *shape, void (*build)(void))
{
    world_init(shape, build);
    if (is_new)
        first = library;
    is_new = false;
    library = first;
    for (uint32_t i = 0; i < library.n_links; i++)
        map(&library.links[i]);
    explore_private(&library.n_left, sizeof library.n_left);
}

void library_open(unsigned threads, bool reconnects)
{
    static const unsigned char alive = 1;
    struct cb_handle *h = &library.h;

    memset(&library, 0, sizeof library);
    is_new = true;
    library.threads = threads;
    h->alive = &alive;
    h->wait_mode = CB_WAIT_ECO;
    h->held = library.held;
    h->n_held = LIBRARY_REQUESTS;
    h->n_vocab = world_geometry()->n_vocab;
    h->n_context = world_geometry()->n_context;
    h->features = CB_FEATURE_RESUME;
    struct cb_link *link = make_link();
    link->serial = 1;
    cb_link_set(h, link);
    if (!reconnects)
        return;
    h->reconnect = &library.reconnect;
    library.reconnect = (struct cb_reconnect){
        .epoll_fd = -1, .timer_fd = -1, .sock = -1, .reconnect_ms = 30000, .resume_max = 5};
}

void library_lose_daemon(void)
{
    library.is_dead = true;
    world_next_lane();
}

uint64_t library_send(uint32_t i, uint32_t n_new, uint32_t flags)
{
    static const uint32_t prompt[1] = {7};
    struct cb_handle *h = &library.h;
    struct cb_held *q = &library.held[i];
    struct cb_request_entry entry = {
        .op = CB_OP_GENERATE, .n_children = 1, .n_prompt = 1, .top_p = 1, .max_new_tokens = n_new};
    uint64_t off, id;
    int ring = 0;

    explore_claim(cb_room_locked(h, &entry, 0, &off) == 0, "an empty lane has no room");
    cb_lane_client_write_arena(h->link->lane, off, prompt, sizeof prompt);
    explore_claim(cb_send_locked(h, &entry, off, q, &ring) == 0, "a lane with room was full");
    id = h->n_sent << 36 | (uint64_t)q->gen << 12 | i;
    q->home = q->link;
    q->home->n_requests++;
    q->flags = flags;
    q->told = q->listed = false;
    q->n_prompt = 1;
    q->limit = n_new;
    q->n_told = q->n_seen = 0;
    q->is_restart_told = true;
    if (h->reconnect) {
        q->record = cb_record_new(&entry, 0, prompt, NULL, 0, NULL);
        q->record->order = h->n_sent;
        cb_record_sent(q->record, q->link, cb_now_ns());
    }
    h->n_sent++;
    h->n_unended++;
    cb_store64(&q->id, id, CB_RELAXED);
    world_bell_daemon(ring);
    return id;
}

void library_resume(void)
{
    struct cb_handle *h = &library.h;
    int ring = 0;

    pthread_mutex_lock(&h->lock);
    cb_lose_locked(h, CB_LOST);
    library.now_ns[explore_self()] = library.reconnect.look_ns;
    cb_resume_locked(h, 0, &ring);
    pthread_mutex_unlock(&h->lock);
    if (ring)
        cb_ring(h);
}

void library_leave(void)
{
    explore_kernel();
    library.n_left++;
}

static bool is_rung_or_alone(void *arg)
{
    (void)arg;
    return world.daemon_bells > 0 ||
           library.n_left == (unsigned)__builtin_popcount(library.threads);
}

bool library_await_bell(void)
{
    bool is_rung = true;

    cb_lane_doze(world.lane);
    cb_lane_doze_fence();
    if (cb_lane_look_again(world.lane, false) == CB_LANE_NOTHING) {
        explore_until(is_rung_or_alone, NULL);
        is_rung = world.daemon_bells > 0;
        world.daemon_bells = 0;
    }
    cb_lane_undoze(world.lane);
    return is_rung;
}
