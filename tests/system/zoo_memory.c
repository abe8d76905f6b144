/* Beasts of the lane: what can be done to memory, cursors and numbers. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/system/zoo.h"

static struct cb_up_hot *hot(const struct cage *k)
{
    return k->raw.up.base;
}

static uint32_t *ring_words(const struct cage *k, uint32_t *n)
{
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    *n = g->req_capacity * g->req_stride / 4;
    return (uint32_t *)((char *)k->raw.up.base + g->up_ring_off);
}

/* By hand, for the library's end would choose the slot, and not send what makes no sense. */
static void send_as_it_is(struct cage *k, const struct cb_request_entry *e)
{
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    uint32_t n;
    uint64_t sent = cb_load64(&hot(k)->req_sent, CB_RELAXED);
    memcpy((char *)ring_words(k, &n) + sent % g->req_capacity * g->req_stride, e, sizeof *e);
    cb_store64(&hot(k)->req_sent, sent + 1, CB_RELEASE);
}

static char *arena(const struct cage *k)
{
    return (char *)k->raw.up.base + k->raw.welcome.geometry.up_arena_off;
}

/* A lane, and ZOO_ROUNDS of `step`, which gets a right entry; one more lane when this is closed. */
typedef void step_fn(struct cage *k, struct cb_request_entry *e, uint32_t round);

static void rounds(struct crowd *c, uint32_t i, step_fn *step)
{
    struct cage k;
    bool open = cage_open(&k, c, i);
    uint32_t n_lanes = 1;
    for (uint32_t round = 0; open && round < ZOO_ROUNDS; round++) {
        struct cb_request_entry e = cage_entry(&k, 1 + round % 60);
        step(&k, &e, round);
        if (!cage_turn(&k)) {
            cage_close(&k);
            open = n_lanes++ < 2 && cage_open(&k, c, i);
        }
        crowd_move(c);
    }
    if (open)
        cage_close(&k);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void flip_ring(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    uint32_t n;
    volatile uint32_t *words = ring_words(k, &n);
    (void)round;
    (void)cage_submit(k, e);
    (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
    for (int i = 0; i < 2000; i++)
        words[draw(&k->random, n)] ^= 1u << draw(&k->random, 32);
}

static void flips_entries(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, flip_ring);
}

/* Before it is accepted, while it is checked, and after. */
static void flip_arena(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    volatile uint32_t *words = (uint32_t *)(void *)arena(k);
    (void)round;
    e->opt_off = 512;
    e->opt_len = 64;
    memset(arena(k) + 512, 0, 64);
    *(struct cb_option_head *)(void *)(arena(k) + 512) =
        (struct cb_option_head){.type = CB_OPTION_STOP_IDS, .bytes = 56};
    (void)cage_submit(k, e);
    (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
    for (int i = 0; i < 2000; i++)
        words[draw(&k->random, 160)] ^= 1u << draw(&k->random, 32);
}

static void flips_prompts_and_options(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, flip_arena);
}

static void punch_all(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    (void)cage_submit(k, e);
    (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
    if (round % 2)
        (void)madvise(k->raw.up.base, k->raw.up.bytes, MADV_REMOVE);
    else
        (void)fallocate(k->raw.fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        (off_t)k->raw.up.bytes);
}

static void punches_holes(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, punch_all);
}

static void scribble_all(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    volatile uint32_t *words = k->raw.up.base;
    uint32_t n = (uint32_t)(k->raw.up.bytes / 4);
    (void)cage_submit(k, e);
    (void)round;
    for (int i = 0; i < 5000; i++)
        words[draw(&k->random, 2) ? draw(&k->random, 2048) : draw(&k->random, n)] =
            draw(&k->random, 3) ? draw(&k->random, 64) : draw(&k->random, UINT32_MAX);
}

static void scribbles(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, scribble_all);
}

/* What the kernel must not allow, with the descriptors as they came and opened anew. */
static void opens_more_than_it_may(struct crowd *c, uint32_t i, void *arg)
{
    struct cage k;
    char path[64];
    (void)arg;
    if (!cage_open(&k, c, i))
        return;
    const off_t up = (off_t)k.raw.up.bytes, down = (off_t)k.raw.down.bytes;
    snprintf(path, sizeof path, "/proc/self/fd/%d", k.raw.fds[0]);
    int again = open(path, O_RDWR | O_CLOEXEC);
    for (int n = 0; n < 2; n++) {
        int fd = n ? again : k.raw.fds[0];
        if (fd < 0)
            continue;
        member_expect(c, ftruncate(fd, up / 2) < 0 && ftruncate(fd, up * 2) < 0, "UP was resized");
        member_expect(c, fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0, "UP was sealed");
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", k.raw.fds[1]);
    int writable = open(path, O_RDWR | O_CLOEXEC); /* root may */
    for (int n = 0; n < 2; n++) {
        int fd = n ? writable : k.raw.fds[1];
        if (fd < 0)
            continue;
        member_expect(c, ftruncate(fd, 0) < 0 && ftruncate(fd, down * 2) < 0, "DOWN was resized");
        member_expect(c, pwrite(fd, "x", 1, 0) < 0, "DOWN was written");
        member_expect(c, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) < 0,
                      "DOWN was punched");
        member_expect(c, mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED,
                      "DOWN was mapped for writing");
    }
    member_expect(c, mprotect(k.raw.down.base, 4096, PROT_READ | PROT_WRITE) < 0,
                  "DOWN was made writable");
    if (again >= 0)
        close(again);
    if (writable >= 0)
        close(writable);
    cage_close(&k);
}

/* ---- cursors ----------------------------------------------------------------------------------- */

static void lies_about_cursors(struct crowd *c, uint32_t i, void *arg)
{
    int way = ((const struct beast *)arg)->way;
    struct cage k;
    if (!cage_open(&k, c, i))
        return;
    struct cb_request_entry e = cage_entry(&k, 5);
    (void)cage_submit(&k, &e);
    (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
    uint64_t sent = cb_load64(&hot(&k)->req_sent, CB_RELAXED);
    uint64_t taken = cb_load64(&hot(&k)->res_taken, CB_RELAXED);
    const uint64_t random[2] = {(uint64_t)draw(&k.random, 1u << 31) << 32 | 1u << 30,
                                (uint64_t)draw(&k.random, 1u << 31) << 32 | 1u << 30};
    const uint64_t lies[][2] = {{sent + 1000000, taken},  {sent - 1000, taken},
                                {sent, taken + 1000000},  {sent, taken - 1000},
                                {UINT64_MAX, UINT64_MAX}, {sent ^ 1ull << 63, taken ^ 1ull << 63},
                                {random[0], random[1]}};
    cb_store64(&hot(&k)->req_sent, lies[way][0], CB_RELEASE);
    cb_store64(&hot(&k)->res_taken, lies[way][1], CB_RELEASE);
    /* No result is taken: that would set the cursor right. */
    uint64_t end = now_ms() + HANG_MS / 2;
    while (raw_send_plain(&k.raw, CB_RECORD_BELL) && !cb_lane_client_closed(k.lc)) {
        member_expect(c, now_ms() < end, "lie %d about cursors is borne", way);
        if (lies[way][0] == sent) /* it looks at the other one when it has an answer for it */
            (void)cage_submit(&k, &e);
        nap();
    }
    uint32_t why = cb_lane_client_closed(k.lc);
    member_expect(c, why == CB_CLOSED_BROKEN, "closed for reason %u", why);
    cage_close(&k);
}

/* The same entry again, and slots given back that nobody read. */
static void resend(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    uint32_t n;
    if (!cage_submit(k, e))
        return;
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    uint32_t *words = ring_words(k, &n);
    uint64_t sent = cb_load64(&hot(k)->req_sent, CB_RELAXED);
    char *ring = (char *)words;
    memcpy(ring + sent % g->req_capacity * g->req_stride,
           ring + (sent - 1) % g->req_capacity * g->req_stride, g->req_stride);
    cb_store64(&hot(k)->req_sent, sent + 1, CB_RELEASE);
    (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
    struct cb_slot_words *slots = (void *)((char *)k->raw.up.base + g->up_slots_off);
    cb_store32(&slots[e->slot].free_gen, e->gen + round % 2, CB_RELEASE);
}

static void sends_twice_and_frees_unread(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, resend);
}

static void toggle(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    (void)cage_submit(k, e);
    for (uint32_t i = 0; i < 5000; i++) {
        cb_store32(&hot(k)->parked, round * 5000 + i, CB_RELAXED);
        if (i % 16 == 0)
            cb_store32(&hot(k)->pause, draw(&k->random, UINT32_MAX), CB_RELAXED);
    }
    cb_store32(&hot(k)->pause, 0, CB_RELAXED);
}

static void toggles_parked_and_pause(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, toggle);
}

/* In one pass of the daemon, and of slots that are not its own business. */
static void cancel(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    struct cb_slot_words *slots = (void *)((char *)k->raw.up.base + g->up_slots_off);
    e->max_new_tokens = CB_NO_LIMIT;
    while (cage_submit(k, e))
        (void)cb_lane_client_cancel(k->lc, e->slot, e->gen);
    for (uint32_t s = 0; s < g->n_slots; s++)
        cb_store32(&slots[s].cancel_gen, round % 2 ? draw(&k->random, UINT32_MAX) : round,
                   CB_RELAXED);
}

static void storms_with_cancels(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, cancel);
}

/* ---- sizes and ids ------------------------------------------------------------------------------- */

enum verdict { NO_MORE, BAD, ODD }; /* odd: nobody asks for it, but it is right */

/* One record of the option block, and what it is to be. */
static void give_option(struct cage *k, struct cb_request_entry *e, uint16_t type,
                        const void *value, uint32_t bytes)
{
    struct cb_option_head *head = (void *)(arena(k) + 512);
    *head = (struct cb_option_head){.type = type, .bytes = bytes};
    if (value)
        memcpy(head + 1, value, bytes);
    e->opt_off = 512;
    e->opt_len = (uint32_t)sizeof *head + (bytes + 7) / 8 * 8;
}

/* A request that goes on after `from` of its 5 ids; `spoil` is added to the fingerprint. */
static void give_resume(struct cage *k, struct cb_request_entry *e, uint32_t from, uint64_t spoil)
{
    struct cb_resume resume = {
        .fingerprint = {k->raw.welcome.fingerprint[0], k->raw.welcome.fingerprint[1] + spoil}};
    give_option(k, e, CB_OPTION_RESUME, &resume, sizeof resume);
    e->resume_from = from;
}

/* One field of a right entry made wrong, in a way of `which`. */
static enum verdict spoil(struct cage *k, struct cb_request_entry *e, uint32_t which)
{
    static const unsigned char text[] = {4, 0, 0, 0, 0xff, 0xfe, 0xc0, 0x80};
    static const struct cb_logit_bias bias = {7, NAN};
    static const uint32_t zeros[80];
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    struct cb_option_head *option = (void *)(arena(k) + 512);
    struct cb_resume *resume = (void *)(option + 1);
    struct cb_sampling sampling;
    uint32_t *ids = (uint32_t *)(void *)arena(k);
    uint32_t strings[2 * (CB_STOPS_MAX + 1)];
    memset(option, 0, 1024);
    cb_sampling_init(&sampling);
    for (uint32_t i = 0; i < CB_STOPS_MAX + 1; i++)
        memcpy(&strings[2 * i], (const uint32_t[2]){1, 'a' + i}, 8);
    switch (which) {
#define WAY_OF(n, verdict, ...) \
    case n:                     \
        __VA_ARGS__;            \
        return verdict
#define WAY(n, ...)     WAY_OF(n, BAD, __VA_ARGS__)
#define ODD_WAY(n, ...) WAY_OF(n, ODD, __VA_ARGS__)
        WAY(0, e->prompt_off = UINT64_MAX - 3);
        WAY(1, e->prompt_off = g->up_arena_bytes - 4);
        WAY(2, e->prompt_off = g->up_arena_bytes);
        WAY(3, e->prompt_off = 2);
        WAY(4, e->prompt_off = 1ull << 63);
        WAY(5, e->n_prompt = 0);
        WAY(6, e->n_prompt = UINT32_MAX);
        WAY(7, e->n_prompt = g->n_context + 1);
        WAY(8, e->opt_off = UINT64_MAX - 7, e->opt_len = 16);
        WAY(9, e->opt_off = g->up_arena_bytes - 8, e->opt_len = 16);
        WAY(10, e->opt_off = 4, e->opt_len = 16);
        WAY(11, e->opt_off = 512, e->opt_len = CB_OPTIONS_MAX + 8);
        WAY(12, ids[0] = g->n_vocab);
        WAY(13, ids[0] = UINT32_MAX);
        WAY(14, e->temperature = NAN);
        WAY(15, e->temperature = INFINITY);
        WAY(16, e->top_p = -1.0f);
        WAY(17, e->top_p = NAN);
        WAY(18, e->temperature = -1e-40f);
        WAY(19, e->n_children = 0);
        WAY(20, e->n_children = g->n_slots + 1);
        WAY(21, e->n_children = UINT32_MAX);
        WAY(22, e->op = 77);
        WAY(23, e->flags = CB_FLAGS_MUST);
        WAY(24, e->reserved[1] = 1);
        WAY(25, e->planes = UINT32_MAX);
        WAY(26, e->priority = UINT32_MAX);
        WAY(27, e->resume_from = UINT32_MAX);
        WAY(28, e->opt_off = 512, e->opt_len = 12); /* half a head behind one */
        WAY(29, e->opt_off = 512, e->opt_len = 16, option->type = CB_OPTION_STOP_IDS,
            option->bytes = 4096);
        WAY(30, e->opt_off = 512, e->opt_len = 16, option->type = CB_OPTION_MUST | 999,
            option->bytes = 8);
        WAY(31, e->opt_off = 512, e->opt_len = 32, option[0].type = CB_OPTION_STOP_IDS,
            option[0].bytes = 4, option[2] = option[0]);
        WAY(32, e->opt_off = 512, e->opt_len = 24, option->type = CB_OPTION_STOP_STRINGS,
            option->bytes = 12, memset(option + 1, 0xff, 12));
        WAY(33, e->opt_off = 512, e->opt_len = 256, option->type = CB_OPTION_STOP_IDS,
            option->bytes = UINT32_MAX);
        WAY(34, e->opt_off = 512, e->opt_len = 16, option->type = CB_OPTION_RESUME,
            option->bytes = 24, e->resume_from = 1);
        WAY(35, give_resume(k, e, 2, 1));     /* a forged fingerprint */
        WAY(36, e->resume_from = 1);          /* goes on without saying where */
        ODD_WAY(37, give_resume(k, e, 0, 0)); /* its first token was not seen yet */
        WAY(38, give_resume(k, e, 5, 0));     /* no prompt is left */
        WAY(39, give_resume(k, e, 2, 0), e->n_children = 2);
        WAY(40, give_resume(k, e, 2, 0), resume->reserved = 1);
        WAY(41, give_resume(k, e, 2, 0), e->max_new_tokens = 1); /* it had more */
        WAY(42, give_resume(k, e, 2, 0), option->bytes = 16);
        WAY(43, give_resume(k, e, 2, 0), e->opt_len += 16, option[4].type = CB_OPTION_STOP_IDS,
            option[4].bytes = 4, memcpy(&option[5], &ids[3], 4)); /* a stop among what is given */
        WAY(44, give_option(k, e, CB_OPTION_STOP_IDS, zeros, 4 * (CB_STOP_IDS_MAX + 1)));
        WAY(45, give_option(k, e, CB_OPTION_STOP_STRINGS, strings, sizeof strings));
        WAY(46, give_option(k, e, CB_OPTION_STOP_STRINGS, NULL, 264),
            memcpy(option + 1, &(uint32_t){CB_STOP_BYTES_MAX + 1}, 4));
        WAY(47, give_option(k, e, CB_OPTION_STOP_STRINGS, text, sizeof text)); /* not UTF-8 */
        WAY(48, give_option(k, e, CB_OPTION_CACHE_SALT, NULL, 0));
        WAY(49, give_option(k, e, CB_OPTION_CACHE_SALT, zeros, CB_SALT_MAX + 1));
        WAY(50, sampling.min_p = NAN,
            give_option(k, e, CB_OPTION_SAMPLING, &sampling, sizeof sampling));
        WAY(51, give_option(k, e, CB_OPTION_BIASES, &bias, sizeof bias));
        WAY(52, give_option(k, e, CB_OPTION_BANNED_IDS, &(uint32_t){g->n_vocab}, 4));
        ODD_WAY(53, e->temperature = -0.0f);
        ODD_WAY(54, e->temperature = 1e-40f);
        ODD_WAY(55, e->top_p = 1e-40f, e->temperature = 1);
        ODD_WAY(56, e->prompt_off = g->up_arena_bytes - 4, e->n_prompt = 1); /* the last bytes */
        ODD_WAY(57, e->flags |= ~CB_FLAGS_MUST);
        ODD_WAY(58, e->opt_off = UINT64_MAX);           /* of no bytes */
        ODD_WAY(59, give_option(k, e, 999, zeros, 16)); /* unknown, and need not be known */
        ODD_WAY(60, give_option(k, e, CB_OPTION_STOP_IDS, zeros, 0));
        ODD_WAY(61, give_option(k, e, CB_OPTION_STOP_IDS, zeros, 4 * CB_STOP_IDS_MAX));
        ODD_WAY(62, give_option(k, e, CB_OPTION_STOP_STRINGS, strings, sizeof strings - 8));
        ODD_WAY(63, e->seed = e->user = UINT64_MAX, e->top_k = UINT32_MAX);
        ODD_WAY(64, e->deadline_ns = UINT64_MAX);
        ODD_WAY(65, give_resume(k, e, 2, 0));
#undef WAY
#undef ODD_WAY
#undef WAY_OF
    default:
        return NO_MORE;
    }
}

/* Each is refused, or the lane is; where it is not, a right request gets its tokens. */
static void sends_nonsense(struct crowd *c, uint32_t i, void *arg)
{
    struct cage k;
    enum verdict verdict = BAD;
    (void)arg;
    for (uint32_t which = 0; verdict != NO_MORE; which++) {
        struct cb_result_entry result = {0};
        if (!cage_open(&k, c, i))
            return;
        struct cb_request_entry e = cage_entry(&k, 5);
        verdict = spoil(&k, &e, which);
        uint64_t end = now_ms() + HANG_MS / 2;
        e.gen = 1; /* of slot 0, which was never used */
        send_as_it_is(&k, &e);
        while (cb_lane_client_poll(k.lc, &result) <= 0 && !cb_lane_client_closed(k.lc)) {
            (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
            member_expect(c, now_ms() < end, "way %u has no answer", which);
            nap();
        }
        bool is_refused =
            result.type == CB_RESULT_REJECTED || cb_lane_client_closed(k.lc) == CB_CLOSED_BROKEN;
        member_expect(c, is_refused == (verdict == BAD),
                      "way %u gives a result of type %u, status %d", which, result.type,
                      (int)result.count);
        cage_close(&k);
        crowd_move(c);
    }
}

static void name_slots(struct cage *k, struct cb_request_entry *e, uint32_t round)
{
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    const uint32_t slots[] = {g->n_slots, UINT32_MAX, 0, 0, 0, g->n_slots - 1};
    const uint32_t gens[] = {1, 1, 0, UINT32_MAX, 1, CB_GEN_MASK + 1};
    e->slot = slots[round % 6];
    e->gen = gens[round % 6];
    e->n_children = round % 12 == 11 ? 8 : 1;
    send_as_it_is(k, e);
}

static void names_slots_that_are_not(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    rounds(c, i, name_slots);
}

const struct beast zoo_memory[] = {
    {"flip entry bytes while intake copies", flips_entries, 0},
    {"flip prompt or option block after check", flips_prompts_and_options, 0},
    {"punch holes", punches_holes, 0},
    {"whole UP random", scribbles, 0},
    {"resize UP, write DOWN, open both anew: must fail", opens_more_than_it_may, 0},
    {"`sent` jumps far ahead", lies_about_cursors, 0},
    {"`sent` goes backwards", lies_about_cursors, 1},
    {"`taken` ahead of `sent`", lies_about_cursors, 2},
    {"`taken` backwards", lies_about_cursors, 3},
    {"both cursors at their end", lies_about_cursors, 4},
    {"both cursors elsewhere", lies_about_cursors, 5},
    {"both cursors random", lies_about_cursors, 6},
    {"duplicate entries; slots freed unread", sends_twice_and_frees_unread, 0},
    {"parked and pause toggled at full speed", toggles_parked_and_pause, 0},
    {"cancel storm on all slots, submit and cancel in one pass", storms_with_cancels, 0},
    {"sizes, ids, parameters and options that make no sense", sends_nonsense, 0},
    {"slots and generations that are not", names_slots_that_are_not, 0},
    {NULL, NULL, 0},
};
