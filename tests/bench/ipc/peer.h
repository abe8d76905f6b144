/* tests/bench/ipc/peer.h - processes that answer: forked, bound to a core, ended with the bench. */
#ifndef CB_BENCH_IPC_PEER_H
#define CB_BENCH_IPC_PEER_H

#include <stdint.h>
#include <stddef.h>
#include <sys/types.h>

void peer_bind(int core);
void peer_free(void); /* from any core */
/* Like fork(); the child is on `core`, and dies with its parent. */
pid_t peer_fork(int core);
void peer_end(pid_t pid);
/* Memory that both have. Never NULL. */
void *peer_share(size_t bytes);
/* Never returns: a thread for each lane calls serve, which never returns either. */
_Noreturn void peer_serve(uint32_t n_lanes, void (*serve)(void *shared, uint32_t lane),
                          void *shared);
/* Says why the bench can't go on, and ends it. */
_Noreturn void peer_fail(const char *what);

#endif
