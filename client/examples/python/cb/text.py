"""The vocabulary that the daemon publishes, and ids to text by it.

The VOCAB segment never changes once it is there. Text becomes ids in encode.py.
"""

import codecs
import struct

from .encode import Encoder
from .errors import error

MAGIC = 0x31424143564243  # "CBVCAB1"
NONE = 0xFFFFFFFF
# magic; version, header_bytes; total_bytes; n_tokens, n_merges, n_specials, merge_slots,
# token_slots, token_bytes_max, pre, flags; bos, eos, eot, unk
HEADER = struct.Struct("<Q II Q 8I 4I 8x")
PART = struct.Struct("<QQ")  # offset, bytes
TEXT_OFF, TEXT, TYPES, NAME = 0, 1, 2, 8
BYTE_IDS, BYTE_IDS_OFF = struct.Struct("<256I"), 224
UNKNOWN, CONTROL = 2, 3


class Vocab:
    def __init__(self, segment):
        (magic, version, _, _, self.n_tokens, _, _, _, _, _, self.pre, self.flags,
         bos, eos, eot, _) = HEADER.unpack_from(segment)
        if magic != MAGIC or version != 1:
            raise error("VERSION", where="the daemon's vocabulary")
        self.bos, self.eos, self.eot = (None if id == NONE else id for id in (bos, eos, eot))
        self.segment = memoryview(segment)
        self.views = [self.segment]
        self.offsets = self.part(TEXT_OFF, "I")
        self.text = self.part(TEXT)
        self.types = self.part(TYPES)
        self.name = bytes(self.part(NAME)).decode(errors="replace")  # of the model
        self.byte_ids = BYTE_IDS.unpack_from(segment, BYTE_IDS_OFF)
        self.encoder = None

    def part(self, i, code="B"):
        """Part i, counted from 0, as numbers of this kind. It lives until close()."""
        off, n = PART.unpack_from(self.segment, HEADER.size + i * PART.size)
        self.views.append(self.segment[off:off + n].cast(code))
        return self.views[-1]

    def close(self):
        for view in reversed(self.views):
            view.release()

    def encode(self, text, special=False, bos=True):
        """The ids of a text. special: tokens that steer the model, where they are written out, are
        these tokens. bos: with the id in front that some models want."""
        if self.encoder is None:
            self.encoder = Encoder(self)
        return self.encoder.encode(text, special, bos)

    def raw_bytes(self, token):
        return bytes(self.text[self.offsets[token]:self.offsets[token + 1]])

    def bytes_of(self, token):
        """What a token adds to the text: nothing, if it only steers the model. Not always whole
        characters."""
        if self.types[token] in (UNKNOWN, CONTROL):
            return b""
        return self.raw_bytes(token)


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
