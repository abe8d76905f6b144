"""Lane format 1 as Python sees it: layouts, numbers, nothing that moves.

Everything here is in cb_shm(7), in the same order: control records, geometry, request entries with
their option blocks, result entries, slot records. A layout is a `struct` format with "<": little
endian, no padding but what is written out.

These formats build and read private bytes only, which are then copied as a whole. A word that both
sides look at while the other may store it (cursors, `doze`, `ctl`, `emitted`) must never go through
`struct`: pack_into first fills its place with zeros and then writes the value, so a daemon that
looks in between reads 0, which tests/python/tears.py would see at every fifth look. Such words are
lane.py's affair.
"""

import struct
from typing import NamedTuple

FORMAT = 1
MAGIC = 0x314B4E414C4243FF  # DOWN begins with the bytes ff "CBLANK1"
PAGE = 4096
NO_LIMIT = NO_ID = 0xFFFFFFFF
GENERATIONS = 1 << 24
WRAP = (1 << 64) - 1  # cursors are free-running 64-bit counters

# ---- the control socket ------------------------------------------------------------------------

RECORD_BYTES = 256
RECORD_MAGIC = 0x5443
HELLO, WELCOME, REFUSED, READY, BYE, BELL, NOTICE = range(1, 8)

# Every record begins with magic, type and a zero.
HEAD = struct.Struct("<HHI")
PLAIN = struct.Struct("<HHI248x")
# head; format_min, format_max; features; word size, endian, n_slots, wake; arena_bytes, pool_bytes;
# libc, name
HELLO_RECORD = struct.Struct("<HHI II Q IIII QQ 16s 64s 120x")
# head; format, lane_id; features; boot_id, fingerprint; geometry; vocab_bytes, status_bytes;
# status_name; spin_us, defaults; seed; weight_epoch
WELCOME_RECORD = struct.Struct("<HHI II Q 16s 16s 112s QQ 48s II Q I 4s")
REFUSED_RECORD = struct.Struct("<HHI i II 236x")
assert {s.size for s in (PLAIN, HELLO_RECORD, WELCOME_RECORD, REFUSED_RECORD)} == {RECORD_BYTES}

WAKE_FUTEX, WAKE_SOCKET = 0, 1

FEATURE_RESUME = 1
FEATURE_SAMPLING = 4
FEATURE_LOGPROBS = 8
FEATURE_PAUSE = 32
FEATURE_EPOCHS = 64
FEATURE_CHILDREN = 128
# Not 16, the operator's defaults: who offers it must also keep to them.
FEATURES = (FEATURE_RESUME | FEATURE_SAMPLING | FEATURE_LOGPROBS | FEATURE_PAUSE | FEATURE_EPOCHS
            | FEATURE_CHILDREN)


class Geometry(NamedTuple):
    """Where everything lies in UP and DOWN. Strides may grow in later versions: step by them."""
    n_slots: int
    req_capacity: int
    req_stride: int
    res_capacity: int
    res_stride: int
    slot_stride: int
    n_vocab: int
    n_context: int
    up_bytes: int
    up_slots_off: int
    up_ring_off: int
    up_arena_off: int
    up_arena_bytes: int
    down_bytes: int
    down_slots_off: int
    down_ring_off: int
    down_pool_off: int
    down_pool_bytes: int

    def is_sane(self):
        """Whether all parts lie in their segment, one behind the other, and are large enough."""
        def fits(end, floor, *parts):
            for off, n, stride in parts:
                if off % 8 or off < floor or off + n * stride > end:
                    return False
                floor = off + n * stride
            return True

        def is_power_of_two(n):
            return n > 0 and n & (n - 1) == 0

        return (self.n_slots > 0 and self.n_vocab > 0 and self.n_context > 0
                and is_power_of_two(self.req_capacity) and is_power_of_two(self.res_capacity)
                and self.req_stride >= ENTRY.size and self.req_stride % 8 == 0
                and self.res_stride >= RESULT.size and self.res_stride % 8 == 0
                and self.slot_stride >= SLOT.size and self.slot_stride % 8 == 0
                and fits(self.up_bytes, 512,
                         (self.up_slots_off, self.n_slots, 8),
                         (self.up_ring_off, self.req_capacity, self.req_stride),
                         (self.up_arena_off, self.up_arena_bytes, 1))
                and fits(self.down_bytes, 2 * PAGE,
                         (self.down_slots_off, self.n_slots, self.slot_stride),
                         (self.down_ring_off, self.res_capacity, self.res_stride),
                         (self.down_pool_off, self.down_pool_bytes, 1)))


GEOMETRY = struct.Struct("<8I10Q")

# ---- words that both sides look at: offsets ----------------------------------------------------

# UP, which we write
UP_REQ_SENT, UP_RES_TAKEN, UP_PARKED, UP_PAUSE, UP_NAME = 0, 128, 256, 260, 384
# DOWN, which the daemon writes and we can map for reading only
DOWN_REQ_TAKEN, DOWN_RES_SENT = PAGE, PAGE + 128
DOWN_BELL, DOWN_DOZE, DOWN_CLOSED, DOWN_NOTICE, DOWN_PAUSE_SEEN = (
    PAGE + 256, PAGE + 384, PAGE + 512, PAGE + 516, PAGE + 520)
# magic; format, lane_id; boot_id, fingerprint; geometry
DOWN_FIXED = struct.Struct("<Q II 16s 16s 112s")

CLOSED_STOPPED, CLOSED_BROKEN, CLOSED_DENIED, CLOSED_BYE = 1, 2, 3, 4

# ---- requests ----------------------------------------------------------------------------------

OP_GENERATE = 1
FLAG_FINAL_ONLY = 1
FLAG_IGNORE_EOS = 2
FLAG_RAW_LOGPROBS = 4
FLAG_ON_WEIGHTS_SHIFT = 3

PLANE_TIMES = 1
PLANE_LOGPROBS = 2
PLANE_TOPK = 4  # its k stands in the upper 16 bits
PLANE_EPOCHS = 8
PLANE_PROMPT = 16

# op, flags, slot, gen, n_children, n_prompt; prompt_off, opt_off; opt_len, resume_from;
# temperature, top_p; top_k, max_new_tokens; seed, user, deadline_ns; planes, priority, child_idx
ENTRY = struct.Struct("<6I 2Q 2I 2f 2I 3Q 3I 28x")
assert ENTRY.size == 128

OPTION_HEAD = struct.Struct("<HHI")
OPTION_STOP_IDS = 0x8001
OPTION_STOP_STRINGS = 0x8002
OPTION_RESUME = 0x8003
OPTION_CACHE_SALT = 0x8010
OPTION_SAMPLING = 0x8011
OPTION_BIASES = 0x8012
OPTION_ALLOWED_IDS = 0x8013
OPTION_BANNED_IDS = 0x8014
# min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty; no_repeat_ngram,
# min_new_tokens, first_id
SAMPLING = struct.Struct("<5f3I")
RESUME = struct.Struct("<16sII")  # fingerprint; child index, zero
BIAS = struct.Struct("<If")


def padded(value, align):
    """The bytes, and zeros up to a multiple of align."""
    return value + bytes(-len(value) % align)


def words(ids):
    """Ids as the lane has them: 4 bytes each."""
    return struct.pack(f"<{len(ids)}I", *ids)


def option(kind, value):
    """A record of an option block. Without a value there is none."""
    return OPTION_HEAD.pack(kind, 0, len(value)) + padded(value, 8) if value else b""


# ---- results -----------------------------------------------------------------------------------

ACCEPTED, REJECTED, TOKENS, FINISHED, CANCELLED, FAILED, LANE = range(1, 8)
RESULT = struct.Struct("<6IQ")


class Result(NamedTuple):
    """A result entry. Of ACCEPTED and REJECTED the last numbers mean something else: cb_shm(7)."""
    type: int
    slot: int
    gen: int
    first: int
    count: int
    last: int
    user: int


SLOT_ADMITTED, SLOT_FINISHED, SLOT_CANCELLED, SLOT_FAILED = 1, 3, 4, 5
SLOT_EMITTED = 4  # offset in a slot record of the word that counts its ids; ctl is at 0
SLOT = struct.Struct("<3I i 4I Q 2I Q 2I 3Q 5Q")
FINISH_STOP_ID = 0x100  # in `finish`: the stop was an id, not a string
ENDS = (None, "eos", "stop", "length", "cancelled", "deadline", "error")


class Slot(NamedTuple):
    """A slot record."""
    ctl: int
    emitted: int
    finish: int
    error: int
    stop_idx: int
    text_bytes: int
    n_prompt: int
    out_cap: int
    out_off: int
    planes: int
    weight_epoch: int
    seed: int
    n_prefix_hit: int
    reserved: int
    queued_ns: int
    first_token_ns: int
    total_ns: int
    times_off: int
    logprobs_off: int
    topk_off: int
    epochs_off: int
    prompt_off: int


assert (RESULT.size, SLOT.size, GEOMETRY.size, DOWN_FIXED.size) == (32, 128, 112, 160)
