/* tests/system/named.h - what tests of lanes by name share: the daemon, its names in /dev/shm, and a client
 * that is not the library and uses nothing but what POSIX has. As with raw.h nothing of that fails by
 * itself. */
#ifndef CB_TESTS_SYSTEM_NAMED_H
#define CB_TESTS_SYSTEM_NAMED_H

#include <semaphore.h>
#include <stdbool.h>

#include "tests/system/environment.h"
#include "tests/system/raw.h"

/* clang-format off: cbclient.h spells out the enums that status.h has, so it comes first */
#include "shm/lane.h"
#include "shm/names.h"
/* clang-format on */

enum { STRANGER = 21000, N_STRANGERS = 3 };

/* Settings: root, nobody and the strangers may have lanes by name. */
#define NAMED_DAEMON                                                                         \
    "--model", "null", "--named_uids", "0,65534,21000,21001,21002", "--socket_mode", "0666", \
        "--socket_trust", "true"

/* False, and said: for tests that become others. */
bool named_is_root(void);

/* Names of this test's daemons in /dev/shm that end so; of lanes; waits until there are none of these. */
int named_count(const struct system *s, const char *end);
int named_count_lanes(const struct system *s);
void named_await_no_lanes(const struct system *s);

struct posix_client {
    struct raw raw;
    struct cb_names_record names;
    sem_t *bell;
    struct cb_lane_client *lc;
};

/* Up to WELCOME and NAMES; all but READY. */
bool posix_greet(struct posix_client *p, const struct system *s);
bool posix_open(struct posix_client *p, const struct system *s);
void posix_close(struct posix_client *p);
/* A request of n tokens. */
void posix_submit(struct posix_client *p, uint32_t n);

#endif
