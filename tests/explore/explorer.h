/* tests/explore/explorer.h - shm/atomics.h's second back-end: runs our own code under the C11
 * memory model.
 *
 * A case is two or three threads (fibres on one OS thread) and a final check. explore_run()
 * executes it again and again until every interleaving and every value that each load may return
 * has been seen:
 *   - a location keeps the history of its stores; a load may return any store not older than what
 *     the thread already knows of (its view);
 *   - a release store carries the writer's view, an acquire load joins it; a relaxed pair carries
 *     nothing but what fences add;
 *   - a sequentially consistent fence joins the thread's view with a global one, both ways;
 *   - copies (cb_copy_in, cb_copy_out) carry data: any two of different threads that touch one
 *     word, one of them writing, must be ordered by the above, else it is a data race;
 *   - the kernel's futex compares with the newest value, as its locks and barriers make it do;
 *   - a lock passes its last holder's view on; memory that is mapped and unmapped meanwhile may be touched
 *     only by who knows of the one, and by nobody who is not known to the other.
 * States seen before (what each thread has read, the histories, the views) are not explored twice,
 * so exploration is complete, not bounded, where `preemptions` is 0. A case must not spin on a word:
 * it would before the explorer knows that another thread writes there.
 *
 * Not explored: two writers whose stores to one word are ordered otherwise than they ran, and loads
 * that return a value stored later (load buffering); format 1 relies on neither.
 *
 * A mutant is the same code with one access weakened: explore_weaken() makes the accesses of one
 * source line relaxed, or its fence vanish. Outside explore_run the accesses work on plain memory.
 *
 * Source: the view machine of Kang et al., "A Promising Semantics for Relaxed-Memory Concurrency"
 * (POPL 2017), without promises; stateless exploration as in Godefroid's VeriSoft (1997), with
 * state caching. */
#ifndef CB_TESTS_EXPLORER_H
#define CB_TESTS_EXPLORER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t cb_atomic32;
typedef uint64_t cb_atomic64;

enum explore_order { CB_RELAXED, CB_ACQUIRE, CB_RELEASE };

#define cb_load32(p, order)          ((uint32_t)explore_load((p), 4, (order), __FILE__, __LINE__))
#define cb_load64(p, order)          explore_load((p), 8, (order), __FILE__, __LINE__)
#define cb_store32(p, v, order)      explore_store((p), 4, (v), (order), __FILE__, __LINE__)
#define cb_store64(p, v, order)      explore_store((p), 8, (v), (order), __FILE__, __LINE__)
#define cb_cas32(p, expected, v)     explore_cas((p), 4, (expected), (v), __FILE__, __LINE__)
#define cb_cas64(p, expected, v)     explore_cas((p), 8, (expected), (v), __FILE__, __LINE__)
#define cb_add32(p, n, order)        explore_add32((p), (n), (order), __FILE__, __LINE__)
#define cb_fence()                   explore_fence(__FILE__, __LINE__)
#define cb_copy_in(dst, src, bytes)  explore_copy_in((dst), (src), (bytes), __FILE__, __LINE__)
#define cb_copy_out(dst, src, bytes) explore_copy_out((dst), (src), (bytes), __FILE__, __LINE__)
#define cb_spin_hint()               ((void)0)

uint64_t explore_load(const void *p, unsigned bytes, enum explore_order order, const char *file,
                      int line);
void explore_store(void *p, unsigned bytes, uint64_t v, enum explore_order order, const char *file,
                   int line);
/* expected: of so many bytes, too. */
bool explore_cas(void *p, unsigned bytes, void *expected, uint64_t v, const char *file, int line);
void explore_add32(void *p, uint32_t n, enum explore_order order, const char *file, int line);
void explore_fence(const char *file, int line);
void explore_copy_in(void *dst, const void *src, size_t bytes, const char *file, int line);
void explore_copy_out(void *dst, const void *src, size_t bytes, const char *file, int line);

#define EXPLORE_THREADS_MAX 3

struct explore_case {
    const char *name;
    unsigned n_threads;
    void (*init)(
        void); /* before each execution: puts all memory in its first state, plain stores */
    void (*thread[EXPLORE_THREADS_MAX])(void);
    void (*check)(void);  /* after all threads ended; explore_newest() reads; or NULL */
    unsigned preemptions; /* how often a thread may be stopped that could go on; 0: unbounded */
};

struct explore_result {
    bool failed;
    char why[160]; /* the claim that failed, or "deadlock: ..." */
    uint64_t n_executions, n_states;
};

/* Explores the case completely or until a claim fails. */
void explore_run(const struct explore_case *c, struct explore_result *result);

/* Inside a case. */
void explore_claim(bool holds, const char *text); /* a false claim ends the exploration */
void explore_futex_wait(const void *word, uint32_t value);
void explore_futex_wake(const void *word); /* all that wait on it */
/* Before the case touches private memory that stands for a kernel object (a socket's queue). */
void explore_kernel(void);
/* A choice of the case's own, of n: each is explored. */
unsigned explore_choose(unsigned n);
unsigned explore_self(void); /* index of the running thread */
/* A mutex, whose address alone counts. Memory that threads touch only while they hold it is theirs in turn,
 * and need not be told to the explorer. */
void explore_lock(const void *mutex);
void explore_unlock(const void *mutex);
/* From now on these threads (bit k: thread k) have memory at p, which explore_unmap takes from all of them.
 * Others may have the same memory elsewhere: they are not concerned. */
void explore_map(const void *p, size_t bytes, unsigned threads);
void explore_unmap(const void *p);
/* Waits for a state of the case's private memory that other threads change; is looked at whenever
 * any thread took a step. Stands for a kernel object: passes no view. */
void explore_until(bool (*ready)(void *), void *arg);
uint64_t explore_newest(const void *p, unsigned bytes); /* the last store in modification order */
/* While on, loads return the newest value and nobody comes between: for words that are read but not
 * used, so that their stale values do not multiply the states. */
void explore_newest_only(bool on);
/* In check: puts the newest values into plain memory, so that the code under test can look at them.
 * The next init must put its first state back. */
void explore_adopt(void);
/* The case's private memory that must be told apart when states are compared (sockets, queues). */
void explore_private(const void *p, size_t bytes);

/* Weakens the accesses on this line; NULL: none. */
void explore_weaken(const char *file, int line);
/* Each source line with an acquire, a release or a fence that was run since the last
 * explore_forget. */
struct explore_site {
    const char *file;
    int line;
    const char *kind;
};
size_t explore_sites(const struct explore_site **sitesp);
void explore_forget(void);
/* Others may come before each access of any kind: slower, and for tests of where they need not. */
void explore_give_way_at_all(bool on);
/* Prints the failing execution, a line an access. */
void explore_trace(bool on);

#endif
