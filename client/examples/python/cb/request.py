"""A request under way, and what came of it."""

import time

from . import wire
from .errors import Failed, error
from .text import TextStream


class Request:
    """Filled as results come in, which is whenever its client polls or waits, for whatever request.

    tokens           the ids so far
    end              None: it runs, or was refused; else "eos", "stop", "length", "cancelled",
                     "deadline" or "error"
    error            why it was refused or broke off
    user             the number of yours, as it came back
    stop, stop_is_id with end "stop": which one, of `stops` or of `stop_ids`
    logprobs, ...    what was asked for beside the ids, a list each
    """

    def __init__(self, client, prompt, wishes, seed, child, slot, gen, before=None):
        self.client = client
        self.prompt = list(prompt)
        self.wishes = wishes
        self.seed = seed
        self.child_idx = before.child_idx if before else wishes.child_idx + child
        self.slot, self.gen = slot, gen
        self.fingerprint = before.fingerprint if before else client.welcome.fingerprint
        self.weight_epoch = self.first_epoch = client.welcome.weight_epoch
        self.tokens = list(before.tokens) if before else []
        self.end = self.error = None
        self.stop = None
        self.stop_is_id = False
        self.user = wishes.user
        self.n_prompt = self.n_prefix_hit = 0
        self.queued_ns = self.first_token_ns = self.total_ns = 0
        self.times, self.logprobs, self.top_logprobs, self.epochs = [], [], [], []
        self.prompt_logprobs, self.prompt_top_logprobs = [], []
        self._n_planes = len(self.tokens)  # tokens whose planes are here too; those given have none
        self._text_bytes = None
        self._arena_off = None

    @property
    def is_done(self):
        return self.end is not None or self.error is not None

    # ---- for who waits for it ------------------------------------------------------------------

    def cancel(self):
        self.client.cancel(self)

    def result(self, timeout=None):
        """Waits for its end, and returns itself; raises why it was refused or broke off."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.is_done:
            self._wait(None if end is None else end - time.monotonic())
        if self.error:
            raise self.error
        return self

    def stream(self, timeout=None):
        """Each token, once, as it comes. `timeout`: seconds to wait for the next ones."""
        n = 0
        while True:
            while n < len(self.tokens):
                n += 1
                yield self.tokens[n - 1]
            if self.is_done:
                break
            self._wait(timeout)
        if self.error:
            raise self.error

    def text_stream(self, timeout=None):
        """The text, in pieces of whole characters, without the stop string that ended it."""
        text = TextStream(self.client.vocab, self.wishes.stops)
        n = 0
        while True:
            piece, n = text.feed(self.tokens[n:]), len(self.tokens)
            if self.is_done:
                piece += text.finish(self._text_bytes)
            if piece:
                yield piece
            if self.is_done:
                break
            self._wait(timeout)
        if self.error:
            raise self.error

    def _wait(self, timeout):
        if not self.client.wait_for(self, timeout):
            raise error("TIMEOUT")

    def text(self):
        """The text so far, without the stop string that ended it."""
        text = TextStream(self.client.vocab, self.wishes.stops)
        return text.feed(self.tokens) + (text.finish(self._text_bytes) if self.is_done else "")

    # ---- for its client ------------------------------------------------------------------------

    def _pull(self, lane, n):
        """Copies what is new out of its run: the ids below n, and what belongs to each."""
        record = lane.record(self.slot)
        first, n = len(self.tokens), min(n, record.out_cap)
        if n > first:
            self.tokens += lane.run(record.out_off, first, n - first, "I")
        first, n_new = self._n_planes, n - self._n_planes
        if n_new > 0:
            self._n_planes = n
            if record.times_off:
                self.times += lane.run(record.times_off, first, n_new, "Q")
            if record.epochs_off:
                self.epochs += lane.run(record.epochs_off, first, n_new, "I")
            if record.logprobs_off:
                self.logprobs += lane.run(record.logprobs_off, first, n_new, "f")
            if record.topk_off:
                self.top_logprobs += self._best(lane, record, record.topk_off, first, n_new)
        has_prompt = n > 0 or (record.ctl & 0xFF == wire.SLOT_FINISHED and record.out_cap == 0)
        if record.prompt_off and has_prompt and not self.prompt_logprobs:
            n_prompt = record.n_prompt
            self.prompt_logprobs = lane.run(record.prompt_off, 0, n_prompt, "f")
            if self.wishes.top_logprobs:
                off = record.prompt_off + -(-4 * n_prompt // 8) * 8
                self.prompt_top_logprobs = self._best(lane, record, off, 0, n_prompt)

    def _best(self, lane, record, off, first, n):
        """The k best at n places: lists of (id, log-probability), shorter where fewer were left."""
        k = record.planes >> 16
        ids = lane.run(off, 2 * k * first, 2 * k * n, "I")[0::2]
        logprobs = lane.run(off, 2 * k * first, 2 * k * n, "f")[1::2]
        pairs = list(zip(ids, logprobs))
        return [[pair for pair in pairs[i:i + k] if pair[0] != wire.NO_ID]
                for i in range(0, n * k, k)]

    def _finish(self, lane, record):
        """Its slot says that it has ended."""
        self._pull(lane, record.emitted)
        self.weight_epoch = record.weight_epoch
        self.n_prompt = record.n_prompt
        self.n_prefix_hit = record.n_prefix_hit
        self.queued_ns = record.queued_ns
        self.first_token_ns = record.first_token_ns
        self.total_ns = record.total_ns
        self.end = wire.ENDS[record.finish & 0xFF]
        if self.end == "stop":
            self.stop = record.stop_idx
            self.stop_is_id = bool(record.finish & wire.FINISH_STOP_ID)
            self._text_bytes = None if self.stop_is_id else record.text_bytes
        if record.ctl & 0xFF == wire.SLOT_FAILED:
            self._break_off(Failed(record.error, self))

    def _refuse(self, reason):
        self.error = reason

    def _break_off(self, reason):
        self.end = "error"
        self.error = reason

    def resume_record(self):
        """For the option block of a request that goes on where this one stood."""
        return wire.RESUME.pack(self.fingerprint, self.child_idx, 0)
