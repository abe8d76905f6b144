"""Ids to text, by the vocabulary that the daemon publishes.

The VOCAB segment never changes once it is there. What it has beside the bytes of each token, to
make ids of text, is told in cb_shm(7).
"""

import codecs
import struct

from .errors import error

MAGIC = 0x31424143564243  # "CBVCAB1"
NONE = 0xFFFFFFFF
# magic; version, header_bytes; total_bytes; n_tokens, n_merges, n_specials, merge_slots,
# token_slots, token_bytes_max, pre, flags; bos, eos, eot, unk
HEADER = struct.Struct("<Q II Q 8I 4I 8x")
PART = struct.Struct("<QQ")  # offset, bytes
TEXT_OFF, TEXT, TYPES, NAME = 0, 1, 2, 8
UNKNOWN, CONTROL = 2, 3


class Vocab:
    def __init__(self, segment):
        (magic, version, _, _, self.n_tokens, _, _, _, _, _, _, _,
         bos, eos, eot, _) = HEADER.unpack_from(segment)
        if magic != MAGIC or version != 1:
            raise error("VERSION", where="the daemon's vocabulary")
        self.bos, self.eos, self.eot = (None if id == NONE else id for id in (bos, eos, eot))
        self.segment = memoryview(segment)
        self.offsets = self._part(TEXT_OFF).cast("I")
        self.text = self._part(TEXT)
        self.types = self._part(TYPES)
        self.name = bytes(self._part(NAME)).decode(errors="replace")  # of the model

    def _part(self, i):
        off, n = PART.unpack_from(self.segment, HEADER.size + i * PART.size)
        return self.segment[off:off + n]

    def close(self):
        for view in (self.offsets, self.text, self.types, self.segment):
            view.release()

    def bytes_of(self, token):
        """What a token adds to the text: nothing, if it only steers the model. Not always whole
        characters."""
        if self.types[token] in (UNKNOWN, CONTROL):
            return b""
        return bytes(self.text[self.offsets[token]:self.offsets[token + 1]])


class TextStream:
    """Ids go in as they come; text comes out in whole characters, as soon as it is certain: what
    may yet turn out to begin a stop string is held back."""

    def __init__(self, vocab, stops=()):
        self.vocab = vocab
        self.stops = [s.encode() for s in stops]
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = b""
        self.n_out = 0  # bytes that left `held`

    def feed(self, ids):
        self.held += b"".join(map(self.vocab.bytes_of, ids))
        return self._release(self._certain())

    def finish(self, text_bytes=None):
        """The rest. text_bytes: of all the bytes, how many come before the stop string."""
        return self._release(len(self.held) if text_bytes is None else text_bytes - self.n_out)

    def _release(self, n):
        out, self.held = self.held[:n], self.held[n:]
        self.n_out += len(out)
        return self.decoder.decode(out)

    def _certain(self):
        """How many of the held bytes come before any stop string, whole or begun."""
        n = len(self.held)
        for stop in self.stops:
            at = self.held.find(stop)
            if at < 0:
                at = max(0, len(self.held) - len(stop) + 1)
                while not stop.startswith(self.held[at:]):
                    at += 1
            n = min(n, at)
        return n
