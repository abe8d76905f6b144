/* kernels/cpu/pool.h - the threads that run kernels.
 *
 * Worker 0 is the thread that calls pool_run; it is always the same one. A region is a function
 * over item numbers; each worker has a range of them, in order, and when it is through with it takes
 * from what others have left. A worker that the system has
 * not scheduled is not waited for: who arrives late finds the region closed. So the number of items
 * a worker gets, and which, is by chance, and functions must give the same result whoever runs
 * them.
 *
 * Waiting is bounded: a worker spins for spin_us, then sleeps on a futex. Workers block all signals
 * and have flush-to-zero set (kernels_thread_init). */
#ifndef CB_KERNELS_CPU_POOL_H
#define CB_KERNELS_CPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

#define POOL_THREADS_MAX 256u

/* Runs items [begin, end). worker < pool_n_threads is this thread's number; no two threads have the
 * same, so it names scratch. */
typedef void pool_fn(void *arg, uint32_t worker, uint32_t begin, uint32_t end);

/* Starts n_threads - 1 threads. 0; -EINVAL beyond POOL_THREADS_MAX or for 0; -ENOMEM or -EAGAIN. */
int pool_new(struct pool **poolp, uint32_t n_threads, uint32_t spin_us);

/* Binds every worker to a core of its own, the calling thread as worker 0 to the first one. 0;
 * -EBUSY: there are fewer cores than threads; another negative errno: the system refuses. */
int pool_pin(struct pool *p);

/* Joins the threads; a pinned caller may go where it could before. NULL is fine; returns NULL. */
struct pool *pool_free(struct pool *p);

uint32_t pool_n_threads(const struct pool *p);

/* Runs fn over [0, n_items), at most run_max items a claim, and returns when all are done; what
 * they wrote is then visible. Claims shrink towards the end, so that workers finish together. */
void pool_run(struct pool *p, pool_fn *fn, void *arg, uint32_t n_items, uint32_t run_max);

/* An errand is a little work beside the regions: fn(arg) on a worker that is awake, while the caller
 * goes on; on the caller where there is none, or when the next region or errand finds that nobody has
 * begun it. fn does not use the pool. False: an earlier one is still under way, and this is not
 * begun. Settled, there is none, and the caller sees what it wrote. */
bool pool_errand(struct pool *p, void (*fn)(void *arg), void *arg);
void pool_settle(struct pool *p);

#endif
