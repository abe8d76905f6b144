/* Beasts of the handshake, of authority, of going on, and the one that never rests. */
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/system/zoo.h"

enum { NOBODY = 65534 };

static void ended(struct crowd *c, pid_t pid)
{
    member_expect(c, pid > 0 && waitpid(pid, NULL, 0) == pid, "no child");
    crowd_move(c);
}

/* Records that no lane may send: each kind until it is hung up on. */
static void sends_records_that_offend(struct crowd *c, uint32_t i, void *arg)
{
    const struct cb_hello hello = raw_hello();
    static const char large[4096] = {1};
    const struct {
        const void *bytes;
        size_t n;
    } kinds[] = {{&hello, sizeof hello},
                 {"", 0},
                 {large, sizeof large},
                 {large, CB_RECORD_BYTES},
                 {&hello, sizeof hello / 2}};
    (void)arg;
    for (size_t n = 0; n < sizeof kinds / sizeof kinds[0]; n++) {
        _Alignas(8) char record[CB_RECORD_BYTES];
        struct cage k;
        int type = 1;
        if (!cage_open(&k, c, i))
            return;
        for (int times = 0; times < 64 && raw_send(&k.raw, kinds[n].bytes, kinds[n].n); times++)
            ;
        while (type > 0)
            type = raw_receive(&k.raw, record);
        member_expect(c, type == 0, "kind %zu is borne", n);
        cage_close(&k);
        crowd_move(c);
    }
}

/* Killed as it stands: connected, greeted, welcomed, ready, with a request on its way. */
static void dies_in_its_handshake(struct crowd *c, uint32_t i, void *arg)
{
    (void)i;
    (void)arg;
    for (int n = 0; n < 20; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct cb_hello hello = raw_hello();
            _Alignas(8) char record[CB_RECORD_BYTES];
            struct raw r;
            int step = n % 5;
            if (raw_connect(&r, c->system) && step > 0 && raw_send(&r, &hello, sizeof hello) &&
                step > 1 && raw_receive(&r, record) > 0 && step > 2 &&
                raw_send_plain(&r, CB_RECORD_READY) && step > 3)
                (void)raw_send_plain(&r, CB_RECORD_BELL);
            raise(SIGKILL);
        }
        ended(c, pid);
    }
}

/* What only operators may; who is one leaves it be. */
static void commands_without_authority(struct crowd *c, uint32_t i, void *arg)
{
    static const char *const commands[] = {"drain", "stop", "stage-weights", "load-weights",
                                           "pause", "set",  "cancel",        "nonsense"};
    char path[128];
    struct stat owner;
    (void)i;
    (void)arg;
    snprintf(path, sizeof path, "%s/%s/sock", c->system->dir, c->system->instance);
    if (geteuid() == 0 || (stat(path, &owner) == 0 && owner.st_uid == geteuid()))
        return;
    for (size_t n = 0; n < 4 * sizeof commands / sizeof commands[0]; n++) {
        const char *command = commands[n / 4];
        struct cb_admin record = {.head = {CB_RECORD_MAGIC, CB_RECORD_ADMIN, 0},
                                  .command_bytes = (uint32_t)strlen(command),
                                  .argument_bytes = 2};
        _Alignas(8) char answer[CB_RECORD_BYTES];
        struct cb_reply reply;
        struct raw r;
        memcpy(record.command, command, record.command_bytes);
        memcpy(record.argument, "16", 2);
        member_expect(c, raw_connect(&r, c->system) && raw_send(&r, &record, sizeof record),
                      "no connection");
        member_expect(c, raw_receive(&r, answer) == CB_RECORD_REPLY, "no answer to %s", command);
        memcpy(&reply, answer, sizeof reply);
        member_expect(c, reply.status < 0, "%s is obeyed", command);
        raw_close(&r);
        crowd_move(c);
    }
}

/* A lane in the hands of another user when its own client dies: it ends all the same. */
static void passes_its_socket_on(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    for (int n = 0; n < 4; n++) {
        int pipes[2];
        char byte;
        member_expect(c, pipe(pipes) == 0, "no pipe");
        pid_t pid = fork();
        if (pid == 0) {
            struct cage k;
            if (!cage_open(&k, c, i))
                _exit(0);
            if (fork() == 0) {
                _Alignas(8) char record[CB_RECORD_BYTES];
                struct cb_request_entry e = cage_entry(&k, 5);
                int type;
                if (geteuid() == 0 && (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY)))
                    _exit(1);
                do {
                    (void)cage_submit(&k, &e);
                    (void)raw_send_plain(&k.raw, CB_RECORD_BELL);
                    type = raw_receive(&k.raw, record);
                } while (type > 0);
                member_expect(c, type == 0, "the lane outlives its client");
                _exit(0); /* with it the pipe's end goes */
            }
            _exit(0);
        }
        close(pipes[1]);
        ended(c, pid);
        while (read(pipes[0], &byte, 1) > 0)
            ;
        close(pipes[0]);
    }
}

/* The longest it may, on three lanes at once, then dies, stopped before or not. */
static void goes_on_and_dies(struct crowd *c, uint32_t i, void *arg)
{
    enum { LANES = 3, N_IDS = 4000 };
    (void)arg;
    for (int n = 0; n < 6; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            static struct cage cages[LANES];
            static uint32_t ids[N_IDS];
            for (int l = 0; l < LANES && cage_open(&cages[l], c, i); l++) {
                struct cage *k = &cages[l];
                struct cb_resume resume = {
                    .fingerprint = {k->raw.welcome.fingerprint[0], k->raw.welcome.fingerprint[1]}};
                struct cb_message_options options = {.resume = &resume};
                struct cb_request_entry e = cage_entry(k, 1);
                uint64_t block[8];
                cb_message_options_build(&options, block);
                e.n_prompt = N_IDS;
                e.resume_from = N_IDS - 1;
                e.max_new_tokens = N_IDS + 100;
                e.opt_off = sizeof ids;
                e.opt_len = (uint32_t)cb_message_options_bytes(&options);
                cb_lane_client_write_arena(k->lc, 0, ids, sizeof ids);
                cb_lane_client_write_arena(k->lc, e.opt_off, block, e.opt_len);
                while (cage_submit(k, &e))
                    ;
                (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
            }
            for (int naps = n % 3 * 10; naps > 0; naps--)
                nap();
            raise(n % 2 ? SIGSTOP : SIGKILL);
            _exit(0);
        }
        int status;
        member_expect(c, pid > 0 && waitpid(pid, &status, WUNTRACED) == pid, "no child");
        if (WIFSTOPPED(status)) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        crowd_move(c);
    }
}

/* ---- results ------------------------------------------------------------------------------------- */

/* Sends it and reads to its end; is_spoiled: all of UP's arena is another's once it is accepted. */
static uint32_t ask(struct crowd *c, struct cage *k, bool is_spoiled, uint32_t ids[64])
{
    struct cb_request_entry e = cage_entry(k, 30);
    struct cb_result_entry result;
    struct cb_slot_view view = {0};
    uint64_t end = now_ms() + HANG_MS / 2;
    uint32_t prompt[30];
    for (uint32_t i = 0; i < 30; i++)
        prompt[i] = 5 * i;
    cb_lane_client_write_arena(k->lc, 0, prompt, sizeof prompt);
    member_expect(c, cage_submit(k, &e), "no place");
    for (bool is_over = false; !is_over;) {
        (void)raw_send_plain(&k->raw, CB_RECORD_BELL);
        member_expect(c, now_ms() < end, "no end");
        int r = cb_lane_client_poll(k->lc, &result);
        if (r <= 0 || !(r & CB_LANE_ENTRY)) {
            nap();
            continue;
        }
        if (result.type == CB_RESULT_ACCEPTED && is_spoiled)
            memset((char *)k->raw.up.base + k->raw.welcome.geometry.up_arena_off, 0xee,
                   k->raw.welcome.geometry.up_arena_bytes);
        is_over = result.type != CB_RESULT_ACCEPTED && result.type != CB_RESULT_TOKENS;
    }
    member_expect(c, result.type == CB_RESULT_FINISHED, "ends by %u", result.type);
    cb_lane_client_slot(k->lc, result.slot, &view);
    member_expect(c, view.emitted <= 64, "%u tokens", view.emitted);
    memcpy(ids, view.ids, view.emitted * sizeof *ids);
    (void)cb_lane_client_free(k->lc, result.slot);
    return view.emitted;
}

static void rewrites_after_acceptance(struct crowd *c, uint32_t i, void *arg)
{
    uint32_t want[64], got[64];
    struct cage k;
    (void)arg;
    if (!cage_open(&k, c, i))
        return;
    uint32_t n = ask(c, &k, false, want);
    for (int round = 0; round < 10; round++) {
        uint32_t n_got = ask(c, &k, true, got);
        member_expect(c, n_got == n && memcmp(want, got, n * sizeof *want) == 0,
                      "what was accepted is not what ran");
        crowd_move(c);
    }
    cage_close(&k);
}

/* By the slot table alone: the ring of results fills, and then its own requests wait. */
static void reuses_slots_unread(struct crowd *c, uint32_t i, void *arg)
{
    struct cage k;
    (void)arg;
    if (!cage_open(&k, c, i))
        return;
    const struct cb_geometry *g = &k.raw.welcome.geometry;
    for (uint32_t round = 0; round < 4 * ZOO_ROUNDS; round++) {
        struct cb_request_entry e = cage_entry(&k, 5);
        e.max_new_tokens = 2;
        (void)cage_submit(&k, &e);
        for (uint32_t slot = 0; slot < g->n_slots; slot++) {
            struct cb_slot_view view;
            cb_lane_client_slot(k.lc, slot, &view);
            if (k.is_held[slot] && view.state >= CB_SLOT_FINISHED) {
                k.is_held[slot] = false;
                (void)cb_lane_client_free(k.lc, slot);
            }
        }
        if (!raw_send_plain(&k.raw, CB_RECORD_BELL))
            break;
        nap();
        crowd_move(c);
    }
    member_expect(c, !cb_lane_client_closed(k.lc), "it broke no rule");
    cage_close(&k);
}

/* ---- the mutator ----------------------------------------------------------------------------------- */

static void mutate(struct cage *k)
{
    const struct cb_geometry *g = &k->raw.welcome.geometry;
    struct cb_up_hot *hot = k->raw.up.base;
    uint32_t *words = k->raw.up.base;
    struct cb_request_entry e = cage_entry(k, 1 + draw(&k->random, 60));
    uint32_t n_words = (uint32_t)(k->raw.up.bytes / 4);
    switch (draw(&k->random, 8)) {
    case 0: /* a cursor, now and then: this breaks the lane */
        if (draw(&k->random, 64) == 0)
            cb_store64(draw(&k->random, 2) ? &hot->req_sent : &hot->res_taken,
                       (uint64_t)draw(&k->random, 1u << 31) << draw(&k->random, 33), CB_RELEASE);
        break;
    case 1: /* all of one entry */
        for (uint32_t w = 0; w < g->req_stride / 4; w++)
            words[(g->up_ring_off + draw(&k->random, g->req_capacity) * g->req_stride) / 4 + w] =
                draw(&k->random, 2) ? draw(&k->random, UINT32_MAX) : draw(&k->random, 20);
        break;
    case 2: /* anything */
        for (int n = 0; n < 500; n++)
            words[1024 + draw(&k->random, n_words - 1024)] = draw(&k->random, UINT32_MAX);
        break;
    case 3: /* words of slots */
        for (uint32_t s = 0; s < 2 * g->n_slots; s++)
            words[g->up_slots_off / 4 + s] = draw(&k->random, 300);
        break;
    case 4:
        cb_store32(&hot->parked, draw(&k->random, UINT32_MAX), CB_RELAXED);
        cb_store32(&hot->pause, draw(&k->random, 2), CB_RELAXED);
        break;
    default: /* a right request, with one byte of it another */
        ((unsigned char *)&e)[draw(&k->random, sizeof e)] ^= (unsigned char)draw(&k->random, 256);
        e.n_children = e.n_children > CB_CHILDREN_MAX ? 1 : e.n_children;
        if (cb_lane_client_can_submit(k->lc, e.n_children ? e.n_children : 1))
            (void)cb_lane_client_submit(k->lc, &e);
    }
}

uint32_t zoo_mutate(struct crowd *c, uint32_t i, uint64_t until_ms)
{
    uint32_t n_broken = 0;
    struct cage k;
    while (now_ms() < until_ms && cage_open(&k, c, i)) {
        for (bool alive = true; alive && now_ms() < until_ms;) {
            mutate(&k);
            alive = raw_send_plain(&k.raw, CB_RECORD_BELL) && !cb_lane_client_closed(k.lc);
            crowd_move(c);
        }
        uint32_t why = cb_lane_client_closed(k.lc);
        member_expect(c, why == CB_CLOSED_NO || why == CB_CLOSED_BROKEN, "closed for reason %u",
                      why);
        n_broken += why == CB_CLOSED_BROKEN;
        cage_close(&k);
        k.random += i;
    }
    return n_broken;
}

static void mutates(struct crowd *c, uint32_t i, void *arg)
{
    (void)arg;
    (void)zoo_mutate(c, i, now_ms() + 500);
}

const struct beast zoo_life[] = {
    {"free and reuse slots, read no result", reuses_slots_unread, 0},
    {"rewrite the arena after ACCEPTED", rewrites_after_acceptance, 0},
    {"HELLO twice; truncated, oversized, empty records", sends_records_that_offend, 0},
    {"kill at each step of the handshake", dies_in_its_handshake, 0},
    {"drain, stop, load weights without authority", commands_without_authority, 0},
    {"pass socket to another uid", passes_its_socket_on, 0},
    {"longest resumes on all lanes, then stop or die", goes_on_and_dies, 0},
    {"scribble over UP for ever", mutates, 0},
    {NULL, NULL, 0},
};
