/* daemon/settings_table.h - every setting of cbd, once.
 *
 * X(name, kind, default, least, most, unit, flags, meaning). From these rows come the command line
 * (--name VALUE), the file (name = VALUE), the environment (CBD_NAME), `--help`, `cbctl settings`,
 * and the list in cbd.conf.5. A setting is added by a row here and its use.
 *
 *   STRING        text of `least` to `most` bytes
 *   CHOICE        one of the words of `unit`
 *   NUMBER        a whole number of least..most; k, m or g may follow: 2^10, 2^20, 2^30
 *   OPTIONAL      NUMBER or "none", kept as SETTING_NONE
 *   OCTAL         a file mode
 *   REAL          a number of least..most
 *   OPTIONAL_REAL REAL or "none", kept as a negative number
 *   BOOL          true or false
 *
 * Flags: LIVE: may be set while the daemon runs (`cbctl settings NAME VALUE`). DEPRECATED: taken for
 * old configurations' sake; whoever gives it a value is warned once, with its meaning.
 *
 * What a value comes to, and which rows do nothing on a backend, settings_resolve.h says. */
#ifndef CB_DAEMON_SETTINGS_TABLE_H
#define CB_DAEMON_SETTINGS_TABLE_H

/* clang-format off */
#define SETTINGS_TABLE(X)                                                                                          \
 X(model,                  STRING,        "",        0, 1023, "path",           0,    "GGUF file to serve, or null: the model without arithmetic") \
 X(instance,               STRING,        "default", 1, 31, "name",             0,    "name of this daemon among others of the machine") \
 X(runtime_dir,            STRING,        "",        0, 60, "path",             0,    "where <instance>/sock lies; empty: as root /run/cbd, else $XDG_RUNTIME_DIR/cbd, else /tmp/cbd-UID") \
 X(takeover,               BOOL,          "false",   0, 0, "",                  0,    "if a daemon of this instance serves, load beside it, then take its place: what it runs goes on here (cbctl upgrade)") \
 X(log_level,              CHOICE,        "info",    0, 0, "error|warning|info|debug", LIVE, "least important lines that are logged") \
 X(backend,                CHOICE,        "cpu",     0, 0, "cpu|reference",     0,    "who does the arithmetic") \
 X(isa,                    CHOICE,        "auto",    0, 0, "auto|scalar|avx2|avx512vnni|avx512bf16|amx|amx_emulated|amx512_emulated", 0, "instruction set of the cpu backend; results are the same on all; those emulated: amx in plain C, slow, for tests") \
 X(batch_invariant,        BOOL,          "true",    0, 0, "",                  0,    "a result depends on its request only, bit for bit; false: where AMX has bf16, products of 64 tokens and more are made in it, for speed") \
 X(threads,                OPTIONAL,      "none",    1, 256, "threads",         0,    "threads of the cpu backend; none: one a physical core, as far as the control group's quota goes") \
 X(pin_threads,            BOOL,          "false",   0, 0, "",                  0,    "bind each of these threads to a core of its own: for machines where nothing else wants the cores") \
 X(kv_dtype,               CHOICE,        "auto",    0, 0, "auto|bf16|u8|f32",     0,    "type of cached keys and values; auto: f32 on reference, else bf16") \
 X(page_size,              NUMBER,        "256",     4, 65536, "tokens",        0,    "tokens a block of the cache; a multiple of 16 on cpu") \
 X(num_blocks,             OPTIONAL,      "none",    1, 16777216, "blocks",     0,    "size of the cache, rounded up to what memory is handed out by; none: by max_memory_percent") \
 X(max_batch_tokens,       OPTIONAL,      "none",    1, 65536, "tokens",        0,    "query tokens a step; none: 512") \
 X(max_memory_percent,     OPTIONAL_REAL, "none",    0.001, 1, "share",         0,    "share of available memory that the cache may take; none: 0.6, at most eight contexts") \
 X(cpu_offload_space,      OPTIONAL_REAL, "0",       0, 1048576, "GiB",         0,    "memory beside the cache where keys and values of preempted requests wait, kept from being swapped out if RLIMIT_MEMLOCK allows; without, they are computed again; none: as much as the next setting allows") \
 X(cpu_offload_space_safety_threshold, REAL, "0.8", 0, 1, "share",              0,    "share of the memory left by weights and cache that cpu_offload_space may take at most; 0: nothing is put aside") \
 X(max_requests_per_batch, OPTIONAL,      "none",    1, 4096, "requests",       0,    "requests a step; none: 1024, at most max_batch_tokens") \
 X(max_blocks_per_request, OPTIONAL,      "none",    0, 1048576, "blocks",      0,    "up to so many blocks decoding is free of the read budget; none: 0") \
 X(scheduler,              CHOICE,        "auto",    0, 0, "auto|fifo|prefill_first|priority|fair", 0, "who runs first; auto: fifo while requests of one user are there, else fair; also written scheduler_type") \
 X(priority_ageing_ms,     NUMBER,        "1000",    0, 3600000, "ms",          0,    "scheduler priority: a request that waits so long counts for one more; 0: never") \
 X(uid_weights,            STRING,        "",        0, 1000, "UID=WEIGHT,...", LIVE, "schedulers auto and fair: a user's share of the machine, 1 to 1000, as in 1000=2,1001=1; users not named have 1") \
 X(safety_margin,          OPTIONAL_REAL, "none",    0, 1, "share",             0,    "free share of the cache below which new prompts wait; none: 0.15, but 0 for prefill_first") \
 X(allow_block_sharing,    BOOL,          "true",    0, 0, "",                  0,    "requests of one user that begin with the same tokens share the cache's blocks of these") \
 X(step_ms_max,            NUMBER,        "50",      0, 60000, "ms",            0,    "prefill of a step is cut to last about this long; 0: off") \
 X(max_requests,           NUMBER,        "4096",    1, 65536, "requests",      0,    "requests accepted and not ended, of all users together; the last eighth is for users who have less than an eighth") \
 X(max_held_tokens,        NUMBER,        "16m",     1024, 4294967296, "tokens", 0,   "prompts and limits of all these requests together") \
 X(max_queue_size,         NUMBER,        "0",       0, 65536, "requests",      LIVE, "with so many waiting, others are refused with CB_BUSY at once, and so is what would wait in its lane; 0: all wait") \
 X(hint_num_requests,      NUMBER,        "0",       0, 65536, "requests",      0,    "so many requests are expected at once: max_requests_per_batch, where that is none, is no more; 0: unknown") \
 X(hint_max_prompt_length, NUMBER,        "0",       0, 16777216, "tokens",     0,    "longest prompt expected: where max_blocks_per_request is none, it has room for this and the next; 0: unknown") \
 X(hint_max_generated_length, NUMBER,     "0",       0, 16777216, "tokens",     0,    "longest answer expected; 0: unknown") \
 X(use_cuda_graph,         CHOICE,        "none",    0, 0, "none|true|false|true,true|true,false|false,true|false,false", 0, "record mixed steps and decoding steps as graphs: both, or a word each; none: where it pays") \
 X(use_async_batching,     CHOICE,        "none",    0, 0, "none|true|false",   0,    "prepare a step while the one before it runs; none: with graphs") \
 X(q_padding_interval_size, NUMBER,       "0",       0, 65536, "tokens",        0,    "with graphs, queries of a step are padded to multiples of this; 0: 64; given, asks for graphs") \
 X(kv_padding_interval_size, NUMBER,      "0",       0, 16777216, "tokens",     0,    "with graphs, keys of a step are padded to multiples of this; 0: 16384; given, asks for graphs") \
 X(varlen_compile_config,  OPTIONAL,      "none",    0, 3, "level",             0,    "how far kernels of mixed steps are tuned; none: default_compile_level") \
 X(decode_compile_config,  OPTIONAL,      "none",    0, 3, "level",             0,    "how far kernels of decoding steps are tuned; none: default_compile_level") \
 X(default_compile_level,  NUMBER,        "0",       0, 3, "level",             0,    "how far kernels are tuned; 0: not") \
 X(return_logprobs,        BOOL,          "false",   0, 0, "",                  LIVE, "every answer comes with log-probabilities, for handles opened from then on") \
 X(logprobs_mode,          CHOICE,        "processed", 0, 0, "processed|raw",   LIVE, "log-probabilities are of what tokens are chosen from, or of the model's logits as they are, where a request does not say; for handles opened from then on") \
 X(seed,                   OPTIONAL,      "none",    0, 9007199254740991, "seed", LIVE, "the seeds that handles opened from then on give their requests without one are drawn from this one; none: at random") \
 X(auto_switch_to_flash,   BOOL,          "true",    0, 0, "",                  0,    "take attention without masks where there is a choice") \
 X(per_request_processors, BOOL,          "false",   0, 0, "",                  0,    "requests may carry a temperature, top_k and top_p of their own") \
 X(drop_unsupported_processors, BOOL,     "true",    0, 0, "",                  0,    "leave out what is asked of the choice of tokens and does not work") \
 X(disable_nccl_graph_mixing, BOOL,       "true",    0, 0, "",                  0,    "processes of a group never mix recorded and plain calls") \
 X(cpu_group_timeout,      OPTIONAL_REAL, "300",     0.001, 1000000, "s",       0,    "how long processes of a group wait for each other") \
 X(use_default_compile_configs, CHOICE,   "none",    0, 0, "none|true|false",   DEPRECATED, "deprecated: true sets default_compile_level to 3, false to 0, whatever that says") \
 X(max_cached_graphs,      OPTIONAL,      "none",    0, 1048576, "graphs",      DEPRECATED, "deprecated: has no effect; graphs are never given up") \
 X(block_size,             OPTIONAL,      "none",    4, 65536, "tokens",        DEPRECATED, "deprecated: page_size, whatever that says") \
 X(on_new_weights,         CHOICE,        "continue", 0, 0, "continue|restart|fail", LIVE, "requests under way when other weights are loaded, where they do not say: they go on with the keys and values they have, or have these computed anew, or end with CB_NEW_WEIGHTS") \
 X(weights_bytes_max,      NUMBER,        "0",       0, 1099511627776, "bytes",  LIVE, "a file of other weights may have so many; 0: twice those of the model's file, at least 1 MiB") \
 X(max_lanes,              NUMBER,        "256",     1, 4096, "lanes",          0,    "clients with a lane") \
 X(lane_slots,             NUMBER,        "64",      1, 4096, "slots",          0,    "requests a lane holds unless its client asks otherwise") \
 X(lane_slots_max,         NUMBER,        "1024",    1, 4096, "slots",          0,    "most that a client may ask for") \
 X(lane_arena_bytes,       NUMBER,        "1m",      4096, 1073741824, "bytes", 0,    "a lane's room for prompts, at least one context and its options") \
 X(lane_arena_bytes_max,   NUMBER,        "64m",     4096, 1073741824, "bytes", 0,    "most that a client may ask for") \
 X(lane_pool_tokens,       NUMBER,        "256k",    16, 268435456, "tokens",   0,    "a lane's room for generated tokens, at least one context") \
 X(lane_pool_tokens_max,   NUMBER,        "16m",     16, 268435456, "tokens",   0,    "most that a client may ask for") \
 X(uid_connections,        NUMBER,        "256",     1, 65536, "connections",   LIVE, "connections of one user, but for those that only give commands") \
 X(uid_half_open,          NUMBER,        "64",      1, 65536, "connections",   LIVE, "connections of one user that have no lane yet") \
 X(uid_lanes,              NUMBER,        "128",     1, 4096, "lanes",          LIVE, "lanes of one user") \
 X(uid_requests,           NUMBER,        "4096",    1, 65536, "requests",      LIVE, "requests of one user, accepted and not ended") \
 X(uid_waiting_tokens,     NUMBER,        "8m",      1, 4294967296, "tokens",   LIVE, "prompt tokens of one user's requests that have not ended") \
 X(uid_bytes,              NUMBER,        "1g",      65536, 1099511627776, "bytes", LIVE, "memory of one user's lanes") \
 X(socket_mode,            OCTAL,         "0660",    0600, 0777, "mode",        0,    "mode of the socket; 0600 where the kernel can't refuse descriptors, see socket_trust") \
 X(socket_group,           STRING,        "",        0, 63, "group",            0,    "group of the socket and its directory; empty: the daemon's") \
 X(admin_group,            STRING,        "",        0, 63, "group",            0,    "its members may drain, stop, pause, resume, set, load weights and cancel for all; empty: root and the daemon's user only") \
 X(named_uids,             STRING,        "",        0, 700, "UID,...",         0,    "users whose clients may have lanes by names in /dev/shm, as in 1000,1001: who can't take descriptors; empty: nobody") \
 X(socket_trust,           BOOL,          "false",   0, 0, "",                  0,    "keep socket_mode on kernels before 6.16, where a client can block the daemon by descriptors") \
 X(user,                   STRING,        "",        0, 63, "name",             0,    "whom cbd becomes when root starts it, once its run directory is made, before it opens the model; empty: nobody else") \
 X(sandbox,                BOOL,          "true",    0, 0, "",                  0,    "has no capabilities, not even as root, and no new privileges, and once it serves, only the system calls that serving takes") \
 X(drain_timeout,          NUMBER,        "30",      0, 86400, "s",             LIVE, "how long a drain may last before what is left is stopped") \
 X(watchdog_ms,            NUMBER,        "10000",   100, 3600000, "ms",        LIVE, "work that waits so long without progress is logged and counted") \
 X(net_ms,                 NUMBER,        "1000",    100, 3600000, "ms",        LIVE, "with lanes open, a sleep is never longer; what it missed is counted") \
 X(wait_mode,              CHOICE,        "balanced", 0, 0, "spin|balanced|eco", LIVE, "before it sleeps the loop spins for ever, up to spin_us, or not; balanced on two cores or fewer: not") \
 X(spin_us,                NUMBER,        "50",      0, 10000, "us",            LIVE, "longest spin in wait_mode balanced, and what clients are advised") \
 X(loop,                   CHOICE,        "auto",    0, 0, "auto|uring|epoll",  0,    "how the daemon waits, and reads the model ahead; auto: io_uring, or epoll and plain reads where that is refused") \
 X(null_vocab,             NUMBER,        "49152",   300, 1048576, "tokens",    0,    "vocabulary of the null model") \
 X(null_context,           NUMBER,        "131072",  16, 16777216, "tokens",    0,    "context of the null model") \
 X(null_step_us,           NUMBER,        "0",       0, 10000000, "us",         0,    "how long a step of the null model takes")
/* clang-format on */

#endif
