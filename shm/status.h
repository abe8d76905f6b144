/* shm/status.h - what can go wrong: numbers that cross the lane and the socket, and their words.
 *
 * X(name, number, text): text may hold two %u, filled with the two numbers that a REJECTED entry or
 * a REFUSED record carries; %r is the first of them as the name of a limit, from the second table;
 * %p is the first of them as the text of a parameter, from the third, filled with the second: as a
 * whole number (%u), or as the bits of a float (%f).
 * Numbers are part of the format: never reuse one. 0 is success. */
#ifndef CB_SHM_STATUS_H
#define CB_SHM_STATUS_H

#include <stdint.h>

/* clang-format off */
#define CB_STATUS_TABLE(X)                                                                         \
    X(CB_OK,               0, "success")                                                           \
    X(CB_BUSY,            -1, "no free slot, ring entry or arena space now; poll, then try again") \
    X(CB_NO_DAEMON,       -2, "no daemon serves this instance; start cbd, check CBD_RUNTIME_DIR")  \
    X(CB_LOST,            -3, "the daemon is gone; open a new handle")                             \
    X(CB_DENIED,          -4, "not allowed for this user; see socket_group, admin_group, named_uids")       \
    X(CB_FORKED,          -5, "this handle belongs to the parent process; open one of your own")   \
    X(CB_TIMEOUT,         -6, "nothing happened within the timeout")                               \
    X(CB_INVALID,         -7, "an argument is outside what the manual allows")                     \
    X(CB_CLOSED,          -8, "the daemon closed this lane, which broke a rule of the format")     \
    X(CB_VERSION,         -9, "library and daemon share no lane format; update the older one")     \
    X(CB_NO_MEMORY,      -10, "out of memory")                                                     \
    X(CB_NOT_FOUND,      -11, "no such request on this handle")                                    \
    X(CB_SYSTEM,         -12, "a system call failed")                                              \
    X(CB_TOO_SMALL,      -13, "the buffer is too small; the size needed was returned")             \
    X(CB_UNTRUSTED,      -14, "the socket's owner is neither root nor you, nor a trusted uid")     \
    X(CB_NOT_RUNNING,    -15, "the handle was stopped; cb_start lets it take requests again")      \
    X(CB_RUNNING,        -16, "the handle was not stopped, so there is nothing to start")          \
    X(CB_PAUSED,         -17, "paused: resume it before it is stopped, or stop it hard")           \
    X(CB_NOT_PAUSED,     -18, "not paused: each resume belongs to a pause before it")              \
    X(CB_EMPTY_PROMPT,   -20, "the prompt is empty; give at least one token")                      \
    X(CB_BAD_TOKEN,      -21, "token id %u is outside the vocabulary of %u")                       \
    X(CB_TOO_LONG,       -22, "prompt and limit make %u tokens, the context is %u; shorten one")   \
    X(CB_NO_CAPACITY,    -23, "%u cache blocks are needed, there are %u in all; lower the limit")  \
    X(CB_BAD_TEMPERATURE,-24, "temperature is negative or not finite; give 0 (greedy) or more")    \
    X(CB_BAD_TOP_P,      -25, "top_p is outside (0, 1]")                                           \
    X(CB_BAD_TOP_K,      -26, "top_k is negative; 0 means off")                                    \
    X(CB_BAD_STOP,       -27, "a stop list has %u where %u are allowed, or holds an empty stop")   \
    X(CB_BAD_UTF8,       -28, "text is not valid UTF-8 at byte %u")                                \
    X(CB_BAD_NUL,        -29, "text holds a NUL at byte %u; remove it")                            \
    X(CB_BAD_SLOT,       -30, "slot %u is outside the lane's %u slots")                            \
    X(CB_BAD_GENERATION, -31, "generation %u can't follow %u in this slot")                        \
    X(CB_BAD_OPTION,     -32, "option or flag %u is unknown, doubled or malformed")                \
    X(CB_BAD_BOUNDS,     -33, "prompt or options lie outside the arena")                           \
    X(CB_QUOTA,          -34, "over a limit: %r, at most %u")                                        \
    X(CB_BAD_PLANES,     -35, "planes %u are not served by this daemon")                           \
    X(CB_DRAINING,       -36, "the daemon is draining and takes no new requests")                  \
    X(CB_CHANGED,        -37, "the model or its arithmetic changed since this request began")      \
    X(CB_NO_TEMPLATE,    -38, "the model's chat template is missing or of a kind not supported")   \
    X(CB_BAD_PARAMETER,  -39, "%p")                                                                \
    X(CB_NOT_FINITE,     -40, "the model's arithmetic gave a value that is not finite")            \
    X(CB_DEVICE,         -41, "the device failed while this request ran")                          \
    X(CB_STOPPED,        -42, "stopped before this request ended: the daemon was, or the handle")    \
    X(CB_INTERNAL,       -43, "the daemon found its bookkeeping wrong and gave this request up")   \
    X(CB_NOTHING_LEFT,   -44, "allowed, banned and repeated ids leave no token to choose")         \
    X(CB_TOO_LATE,       -45, "it would end after %u ms, and its deadline is %u ms")               \
    X(CB_NEW_WEIGHTS,    -46, "the model got other weights, and this request was to end then")    \
    X(CB_BAD_RECORD,     -50, "a control record was malformed")                                    \
    X(CB_BAD_SETTING,    -51, "no such setting, or its value is out of bounds")                    \
    X(CB_BAD_COMMAND,    -52, "no such command")                                                   \
    X(CB_BAD_WEIGHTS,    -53, "the weights were refused, and those that run run on")

/* What CB_QUOTA is about: X(name, number, text). */
#define CB_LIMIT_TABLE(X)                                                                          \
    X(CB_LIMIT_CONNECTIONS,      1, "connections of all users")                                    \
    X(CB_LIMIT_FILES,            2, "open files of the daemon (RLIMIT_NOFILE)")                    \
    X(CB_LIMIT_UID_CONNECTIONS,  3, "connections of this user (uid_connections)")                  \
    X(CB_LIMIT_UID_HALF_OPEN,    4, "unfinished handshakes of this user (uid_half_open)")          \
    X(CB_LIMIT_UID_ADMINS,       5, "connections of this user that give commands")                 \
    X(CB_LIMIT_LANES,            6, "lanes of all users (max_lanes)")                              \
    X(CB_LIMIT_UID_LANES,        7, "lanes of this user (uid_lanes)")                              \
    X(CB_LIMIT_UID_MIB,          8, "MiB in lanes of this user (uid_bytes)")                       \
    X(CB_LIMIT_LANE_SLOTS,       9, "slots of a lane (lane_slots_max)")                            \
    X(CB_LIMIT_LANE_ARENA_KIB,  10, "KiB for a lane's prompts (lane_arena_bytes_max)")             \
    X(CB_LIMIT_LANE_POOL,       11, "tokens of a lane's results (lane_pool_tokens_max)")           \
    X(CB_LIMIT_POOL,            12, "tokens of this lane's results (cb_options.pool_bytes)")       \
    X(CB_LIMIT_UID_WAITING,     13, "prompt tokens of this user (uid_waiting_tokens)")             \
    X(CB_LIMIT_HELD_TOKENS,     14, "prompts and limits of all requests (max_held_tokens)")             \
    X(CB_LIMIT_UID_REQUESTS,    15, "requests of this user at once (uid_requests)")                \
    X(CB_LIMIT_REQUESTS,        16, "requests of all users at once (max_requests)")                \
    X(CB_LIMIT_SHM_KIB,         17, "KiB for a lane by name in /dev/shm (its size, --shm-size)")

/* What CB_BAD_PARAMETER is about: X(name, number, text). */
#define CB_PARAMETER_TABLE(X)                                                                      \
    X(CB_PARAMETER_MIN_P,         1, "min_p is %f; give a number from 0, which is off, to 1")      \
    X(CB_PARAMETER_TYPICAL_P,     2, "typical_p is %f; give a number above 0, to 1, which is off") \
    X(CB_PARAMETER_REPETITION,    3,                                                               \
      "repetition_penalty is %f; give a number from 0.001 to 1000; 1 is off")                      \
    X(CB_PARAMETER_PRESENCE,      4,                                                               \
      "presence_penalty is %f; give a number from -1000 to 1000; 0 is off")                        \
    X(CB_PARAMETER_FREQUENCY,     5,                                                               \
      "frequency_penalty is %f; give a number from -1000 to 1000; 0 is off")                       \
    X(CB_PARAMETER_BIAS,          6, "a logit bias is %f; give numbers from -10000 to 10000")      \
    X(CB_PARAMETER_BIASES,        7, "there are %u logit biases; give at most 1024")               \
    X(CB_PARAMETER_BIAS_TWICE,    8, "there are two logit biases for id %u; give one")             \
    X(CB_PARAMETER_ALLOWED,       9, "there are %u allowed ids; give 1 to 4096, or no list")       \
    X(CB_PARAMETER_BANNED,       10, "there are %u banned ids; give at most 4096")                 \
    X(CB_PARAMETER_IDS_ORDER,    11, "id %u does not ascend in its list; sort it, each id once")   \
    X(CB_PARAMETER_ALL_BANNED,   12, "all %u allowed ids are banned; leave one")                   \
    X(CB_PARAMETER_TOP_LOGPROBS, 13, "top_logprobs is %u; give 0 to 20")
/* clang-format on */

/* The library's public header spells the same enums out; client/errors.c asserts that they agree. */
#ifndef CBCLIENT_H
enum cb_status {
#define X(name, number, text) name = number,
    CB_STATUS_TABLE(X)
#undef X
};
enum cb_limit {
#define X(name, number, text) name = number,
    CB_LIMIT_TABLE(X)
#undef X
};
enum cb_parameter {
#define X(name, number, text) name = number,
    CB_PARAMETER_TABLE(X)
#undef X
};
#endif

/* CB_QUOTA, with the numbers that say which limit and how much it allows. */
static inline int cb_over(enum cb_limit which, uint64_t most, uint32_t detail[2])
{
    detail[0] = (uint32_t)which;
    detail[1] = most > UINT32_MAX ? UINT32_MAX : (uint32_t)most;
    return CB_QUOTA;
}

#endif
