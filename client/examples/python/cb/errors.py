"""What can go wrong: the statuses of the format, and the exceptions that they become.

A status crosses the lane or the socket as a number with two more, its detail, which go into its
words. Numbers and words are those of cb_shm(7), but for what only the C library says.
"""

import struct

# number: (name, words). {0} and {1} are the detail; {limit} the first of them as the name of a
# limit, {parameter} the first as the words for a parameter, which hold the second.
STATUSES = {
    0: ("OK", "success"),
    -1: ("BUSY", "no free slot, ring entry or arena space now; poll, then try again"),
    -2: ("NO_DAEMON", "no daemon serves this instance; start cbd, check CBD_RUNTIME_DIR"),
    -3: ("LOST", "the daemon is gone; open a new handle"),
    -4: ("DENIED", "not allowed for this user; see socket_group, admin_group, named_uids"),
    -5: ("FORKED", "this handle belongs to the parent process; open one of your own"),
    -6: ("TIMEOUT", "nothing happened within the timeout"),
    -7: ("INVALID", "an argument is outside what the manual allows"),
    -8: ("CLOSED", "the daemon closed this lane, which broke a rule of the format"),
    -9: ("VERSION", "library and daemon share no lane format; update the older one"),
    -10: ("NO_MEMORY", "out of memory"),
    -12: ("SYSTEM", "a system call failed"),
    -14: ("UNTRUSTED", "the socket's owner is neither root nor you, nor a trusted uid"),
    -20: ("EMPTY_PROMPT", "the prompt is empty; give at least one token"),
    -21: ("BAD_TOKEN", "token id {0} is outside the vocabulary of {1}"),
    -22: ("TOO_LONG", "prompt and limit make {0} tokens, the context is {1}; shorten one"),
    -23: ("NO_CAPACITY", "{0} cache blocks are needed, there are {1} in all; lower the limit"),
    -24: ("BAD_TEMPERATURE", "temperature is negative or not finite; give 0 (greedy) or more"),
    -25: ("BAD_TOP_P", "top_p is outside (0, 1]"),
    -26: ("BAD_TOP_K", "top_k is negative; 0 means off"),
    -27: ("BAD_STOP", "a stop list has {0} where {1} are allowed, or holds an empty stop"),
    -28: ("BAD_UTF8", "text is not valid UTF-8 at byte {0}"),
    -30: ("BAD_SLOT", "slot {0} is outside the lane's {1} slots"),
    -31: ("BAD_GENERATION", "generation {0} can't follow {1} in this slot"),
    -32: ("BAD_OPTION", "option or flag {0} is unknown, doubled or malformed"),
    -33: ("BAD_BOUNDS", "prompt or options lie outside the arena"),
    -34: ("QUOTA", "over a limit: {limit}, at most {1}"),
    -35: ("BAD_PLANES", "planes {0} are not served by this daemon"),
    -36: ("DRAINING", "the daemon is draining and takes no new requests"),
    -37: ("CHANGED", "the model or its arithmetic changed since this request began"),
    -39: ("BAD_PARAMETER", "{parameter}"),
    -40: ("NOT_FINITE", "the model's arithmetic gave a value that is not finite"),
    -41: ("DEVICE", "the device failed while this request ran"),
    -42: ("STOPPED", "stopped before this request ended: the daemon was, or the handle"),
    -43: ("INTERNAL", "the daemon found its bookkeeping wrong and gave this request up"),
    -44: ("NOTHING_LEFT", "allowed, banned and repeated ids leave no token to choose"),
    -45: ("TOO_LATE", "it would end after {0} ms, and its deadline is {1} ms"),
    -46: ("NEW_WEIGHTS", "the model got other weights, and this request was to end then"),
    -50: ("BAD_RECORD", "a control record was malformed"),
}

# What QUOTA is about.
LIMITS = {
    1: "connections of all users",
    2: "open files of the daemon (RLIMIT_NOFILE)",
    3: "connections of this user (uid_connections)",
    4: "unfinished handshakes of this user (uid_half_open)",
    5: "connections of this user that give commands",
    6: "lanes of all users (max_lanes)",
    7: "lanes of this user (uid_lanes)",
    8: "MiB in lanes of this user (uid_bytes)",
    9: "slots of a lane (lane_slots_max)",
    10: "KiB for a lane's prompts (lane_arena_bytes_max)",
    11: "tokens of a lane's results (lane_pool_tokens_max)",
    12: "tokens of this lane's results (cb_options.pool_bytes)",
    13: "prompt tokens of this user (uid_waiting_tokens)",
    14: "prompts and limits of all requests (max_held_tokens)",
    15: "requests of this user at once (uid_requests)",
    16: "requests of all users at once (max_requests)",
    17: "KiB for a lane by name in /dev/shm (its size, --shm-size)",
}

# What BAD_PARAMETER is about; {0} is the value, for 1 to 6 a float whose bits the detail has.
PARAMETERS = {
    1: "min_p is {0:g}; give a number from 0, which is off, to 1",
    2: "typical_p is {0:g}; give a number above 0, to 1, which is off",
    3: "repetition_penalty is {0:g}; give a number from 0.001 to 1000; 1 is off",
    4: "presence_penalty is {0:g}; give a number from -1000 to 1000; 0 is off",
    5: "frequency_penalty is {0:g}; give a number from -1000 to 1000; 0 is off",
    6: "a logit bias is {0:g}; give numbers from -10000 to 10000",
    7: "there are {0} logit biases; give at most 1024",
    8: "there are two logit biases for id {0}; give one",
    9: "there are {0} allowed ids; give 1 to 4096, or no list",
    10: "there are {0} banned ids; give at most 4096",
    11: "id {0} does not ascend in its list; sort it, each id once",
    12: "all {0} allowed ids are banned; leave one",
    13: "top_logprobs is {0}; give 0 to 20",
}


def explain(status, detail=(0, 0)):
    """A status with its detail, in words."""
    words = STATUSES.get(status, ("", "a status of another version"))[1]
    if "{parameter}" in words:
        words = PARAMETERS.get(detail[0], "a parameter of another version's is out of bounds")
        value = detail[1]
        if detail[0] <= 6:
            value = struct.unpack("<f", struct.pack("<I", value))[0]
        return words.format(value)
    return words.format(*detail, limit=LIMITS.get(detail[0], "a limit of another version's"))


class Error(Exception):
    """What went wrong: `status` is its name ("TOO_LONG"), `code` its number, `detail` the two
    numbers that belong to it; str() is the sentence."""

    def __init__(self, code, detail=(0, 0), where=None):
        self.code = code
        self.status = STATUSES.get(code, (str(code), ""))[0]
        self.detail = tuple(detail)
        words = explain(code, self.detail)
        super().__init__(f"{where}: {words}" if where else words)


class NoDaemon(Error):
    """Nobody serves this instance, or none that may be trusted."""


class Busy(Error):
    """No slot, ring entry or arena space is free now: let some request end, and try again."""


class Lost(Error):
    """The daemon is gone, or has closed this lane: connect again."""


class Timeout(Error, TimeoutError):
    """It was not there in time."""


class Refused(Error):
    """The daemon refuses this connection or request: asking again for the same is of no use."""


class Failed(Error):
    """A request was taken in, and broke off. The tokens it had are in `request.tokens`."""

    def __init__(self, code, request):
        super().__init__(code)
        self.request = request


_CLASSES = {"BUSY": Busy, "NO_DAEMON": NoDaemon, "UNTRUSTED": NoDaemon, "LOST": Lost,
            "CLOSED": Lost, "FORKED": Lost, "TIMEOUT": Timeout}
_CODES = {name: code for code, (name, _) in STATUSES.items()}


def code_of(status):
    """The number of a status, by its name."""
    return _CODES[status]


def error(status, detail=(0, 0), where=None):
    """The exception for a status, given by its name or its number."""
    code = _CODES[status] if isinstance(status, str) else status
    name = STATUSES.get(code, (None,))[0]
    return _CLASSES.get(name, Refused)(code, detail, where)
