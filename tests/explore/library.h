/* tests/explore/library.h - a handle of the library between a client's threads and a lane of world.h, for the cases:
 * client/ as it is, with its lock, its waits, and its way from a lost lane to the next.
 *
 * Only the system is not there: time stands still but where a case moves it, a daemon that died answers no more
 * (EPIPE), and the next one answers at once. What the library shares under its lock, or frees, is not watched here: that
 * is the sanitizers' (the suite of tests/client). */
#ifndef CB_TESTS_EXPLORE_LIBRARY_H
#define CB_TESTS_EXPLORE_LIBRARY_H

#include "client/internal.h"
#include "client/reconnect.h"
#include "tests/explore/world.h"

enum { LIBRARY_REQUESTS = 2, LIBRARY_LINKS = 2, LIBRARY_HEAP_BYTES = 4096 };

struct library {
    struct cb_handle h;
    struct cb_held held[LIBRARY_REQUESTS];
    struct cb_link links[LIBRARY_LINKS];
    struct cb_held *of_slot[LIBRARY_LINKS][WORLD_SLOTS_MAX];
    struct cb_piece pieces[LIBRARY_LINKS][WORLD_SLOTS_MAX];
    uint32_t n_links;
    struct cb_reconnect reconnect;
    uint64_t now_ns[EXPLORE_THREADS_MAX];
    unsigned threads;                 /* of the library, a bit each; another one is the daemon */
    unsigned times_out;               /* those whose sleep may last too long */
    unsigned naps;                    /* those whose sleep always does */
    unsigned n_left;                  /* threads that will do no more */
    bool is_dead;                     /* the first daemon */
    cb_atomic32 socks[LIBRARY_LINKS]; /* stand for the sockets: there while they are open */
    size_t heap_bytes;
    alignas(16) unsigned char heap[LIBRARY_HEAP_BYTES];
};
extern struct library library;

/* In init, as world_init; build begins with library_open. */
void library_init(const struct world_shape *shape, void (*build)(void));

/* In build: a handle on the world's lane, for these threads (bit k: thread k); reconnects: finds the next daemon. */
void library_open(unsigned threads, bool reconnects);
/* In build: its daemon was killed, and the next one is the world's. */
void library_lose_daemon(void);

/* Sends request i of the handle for n_new tokens; resumable, if the handle finds the next daemon. The lock is held,
 * where there is one. Returns its id. */
uint64_t library_send(uint32_t i, uint32_t n_new, uint32_t flags);

/* What a poll does when the daemon is dead: the lane is lost, the next one is found. */
void library_resume(void);

/* This thread will do no more. The daemon sleeps until it is rung, or there is nobody who could: false. */
void library_leave(void);
bool library_await_bell(void);

#endif
