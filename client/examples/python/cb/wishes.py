"""What a request may wish for, and how that looks in the lane: its entry and its option block.

The daemon checks all of it and says what is wrong, so hardly anything is checked here: only what
has no form in the lane.
"""

from dataclasses import dataclass
from typing import Optional, Sequence

from . import wire
from .errors import error

FLOAT_MAX = 3.4028234663852886e38


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """All is off, or as much as can be, unless it is given. What each does: cbclient(3)."""
    max_new_tokens: Optional[int] = None  # None: as much as the context holds
    temperature: float = 0.0              # 0: greedy
    top_p: float = 1.0
    top_k: int = 0
    seed: Optional[int] = None            # None: one is drawn; Request.seed tells it
    stop_ids: Sequence[int] = ()
    stops: Sequence[str] = ()             # strings
    deadline_ms: int = 0
    priority: int = 0
    user: int = 0                         # a number of yours
    child_idx: int = 0                    # of the first child
    cache_salt: bytes = b""

    allowed_ids: Optional[Sequence[int]] = None
    banned_ids: Optional[Sequence[int]] = None
    biases: Sequence[tuple] = ()          # (id, bias)
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    min_new_tokens: int = 0
    first_id: Optional[int] = None

    final_only: bool = False              # no news before the end
    ignore_eos: bool = False
    on_new_weights: int = 0
    times: bool = False                   # what to record beside the ids
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    raw_logprobs: bool = False
    epochs: bool = False

    def flags(self):
        return (wire.FLAG_FINAL_ONLY * self.final_only | wire.FLAG_IGNORE_EOS * self.ignore_eos
                | wire.FLAG_RAW_LOGPROBS * self.raw_logprobs
                | self.on_new_weights << wire.FLAG_ON_WEIGHTS_SHIFT)

    def planes(self):
        k = self.top_logprobs
        return (wire.PLANE_TIMES * self.times | wire.PLANE_LOGPROBS * (self.logprobs or k > 0)
                | (wire.PLANE_TOPK | k << 16 if k else 0)
                | wire.PLANE_EPOCHS * self.epochs | wire.PLANE_PROMPT * self.prompt_logprobs)

    def check(self):
        """What a 32-bit word or a float could not say, so that the daemon never got to see it."""
        if not 0 <= self.temperature <= FLOAT_MAX:
            raise error("BAD_TEMPERATURE")
        if self.top_k < 0:
            raise error("BAD_TOP_K")
        if not 0 <= self.top_logprobs <= 20:
            raise error("BAD_PARAMETER", (13, self.top_logprobs & wire.NO_ID))
        for ids, which in ((self.allowed_ids, 9), (self.banned_ids, 10)):
            if ids is not None and not 1 <= len(set(ids)) <= 4096:
                raise error("BAD_PARAMETER", (which, len(set(ids))))
        if len(self.biases) > 1024:
            raise error("BAD_PARAMETER", (7, len(self.biases)))
        for stops, most in ((self.stop_ids, 64), (self.stops, 16)):
            if len(stops) > most:
                raise error("BAD_STOP", (len(stops), most))
        for stop in self.stops:
            if not 1 <= len(stop.encode()) <= 256:
                raise error("BAD_STOP", (len(stop.encode()), 256), "bytes of a stop string")

    def options(self, resume=b""):
        """The option block: one record for each thing that is asked for."""
        stops = b"".join(len(b).to_bytes(4, "little") + wire.padded(b, 4)
                         for b in (s.encode() for s in self.stops))
        plain = wire.SAMPLING.pack(0, 1, 1, 0, 0, 0, 0, wire.NO_ID)
        sampling = wire.SAMPLING.pack(
            self.min_p, self.typical_p, self.repetition_penalty, self.presence_penalty,
            self.frequency_penalty, self.no_repeat_ngram, self.min_new_tokens,
            wire.NO_ID if self.first_id is None else self.first_id)
        # Lists go out in ascending order, each id once. One with two biases is a mistake, which the
        # daemon finds where they lie side by side.
        allowed, banned = (wire.words(sorted(set(ids or ())))
                           for ids in (self.allowed_ids, self.banned_ids))
        biases = b"".join(wire.BIAS.pack(*pair) for pair in sorted(self.biases))
        return b"".join((
            wire.option(wire.OPTION_STOP_IDS, wire.words(self.stop_ids)),
            wire.option(wire.OPTION_STOP_STRINGS, stops),
            wire.option(wire.OPTION_RESUME, resume),
            wire.option(wire.OPTION_CACHE_SALT, self.cache_salt),
            wire.option(wire.OPTION_SAMPLING, sampling if sampling != plain else b""),
            wire.option(wire.OPTION_BIASES, biases),
            wire.option(wire.OPTION_ALLOWED_IDS, allowed),
            wire.option(wire.OPTION_BANNED_IDS, banned)))

    def entry(self, n_prompt, n_options, seed, n_children=1, n_given=0):
        """A function that makes the 128 bytes of a request entry, once its place is known."""
        def pack(slot, gen, prompt_off, opt_off):
            return wire.ENTRY.pack(
                wire.OP_GENERATE, self.flags(), slot, gen, n_children, n_prompt,
                prompt_off, opt_off, n_options, n_given, self.temperature, self.top_p, self.top_k,
                wire.NO_LIMIT if self.max_new_tokens is None else self.max_new_tokens,
                seed, self.user, self.deadline_ms * 1_000_000, self.planes(), self.priority,
                self.child_idx if not n_given else 0)
        return pack
