"""Text to ids, by the vocabulary that the daemon publishes: cb_shm(7), VOCAB.

Special tokens are found first; what lies between is cut into words; in each word the two neighbours
that merge first become one, until none do. The cutting is what differs from model to model: there
is a regular expression for each way.
"""

import re
import struct
import unicodedata

from .errors import error

GPT2, SMOLLM, LLAMA3, QWEN2 = 1, 2, 3, 4
ADD_BOS, WORDS_FIRST, NORMALISE = 1, 2, 4  # flags of the vocabulary
MERGES, MERGE_SLOTS, TOKEN_SLOTS, SPECIALS = 3, 4, 5, 6  # parts of it
NORMAL, CONTROL = 1, 3  # types of tokens
NONE = 0xFFFFFFFF
MERGE = struct.Struct("<3I")
MASK64 = (1 << 64) - 1

# ---- words ---------------------------------------------------------------------------------------

SPACES = {0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


class _Shape(dict):
    """What the patterns below see of a character. They tell letters, numbers, white space and the
    rest apart, of all Unicode, which `re` can't; so each character beyond ASCII is stood for by one
    of its kind, and the text is cut where this shape of it is. (ſ stays: it is an s to (?i:'s).)"""

    def __missing__(self, code):
        if code < 128 or chr(code) == "ſ":
            shape = chr(code)
        elif code in SPACES:
            shape = "\t"  # not " ", which may begin a word
        else:
            shape = {"L": "é", "N": "0"}.get(unicodedata.category(chr(code))[0], "!")
        self[code] = shape
        return shape


_SHAPE = _Shape()
_L, _N, _S = "A-Za-zéſ", "0-9", r"\t-\r "
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_REST = f" ?[^{_S}{_L}{_N}]+"
_SPACE = f"[{_S}]+(?![^{_S}])|[{_S}]+"
_LATER = (f"(?i:{_CONTRACTIONS})|[^\\r\\n{_L}{_N}]?[{_L}]+|%s|{_REST}[\\r\\n]*|[{_S}]*[\\r\\n]+"
          f"|{_SPACE}")
_PATTERNS = {
    GPT2: f"{_CONTRACTIONS}| ?[{_L}]+| ?[{_N}]+|{_REST}|{_SPACE}",
    SMOLLM: f"[{_N}]|{_CONTRACTIONS}| ?[{_L}]+|{_REST}|[{_S}]+(?![^{_S}{_N}])|[{_S}]+",
    LLAMA3: _LATER % f"[{_N}]{{1,3}}",
    QWEN2: _LATER % f"[{_N}]",
}


def words_of(text, pre):
    """The text in pieces, none left out."""
    for match in re.finditer(_PATTERNS[pre], text.translate(_SHAPE)):
        yield text[match.start():match.end()]


# ---- ids -----------------------------------------------------------------------------------------

class Encoder:
    """What it takes of a vocabulary to encode. A word of many thousand bytes takes it long: each
    merge looks at the whole word."""

    def __init__(self, vocab):
        if vocab.pre not in _PATTERNS:
            raise error("VERSION", where="how this model cuts text into words")
        self.vocab = vocab
        self.merges = vocab.part(MERGES)
        self.merge_slots = vocab.part(MERGE_SLOTS, "I")
        self.token_slots = vocab.part(TOKEN_SLOTS, "I")
        self.specials = {vocab.raw_bytes(id): id for id in vocab.part(SPECIALS, "I")}
        self.patterns = [self._pattern(with_control) for with_control in (False, True)]

    def _pattern(self, with_control):
        """Finds the leftmost special token, and there the longest; None: there are none."""
        texts = [text for text, id in self.specials.items()
                 if with_control or self.vocab.types[id] != CONTROL]
        texts.sort(key=len, reverse=True)
        return re.compile(b"(" + b"|".join(map(re.escape, texts)) + b")") if texts else None

    def encode(self, text, special, bos):
        """The ids of a text, as Vocab.encode says."""
        vocab = self.vocab
        ids = [vocab.bos] if bos and vocab.flags & ADD_BOS and vocab.bos is not None else []
        pattern = self.patterns[special]
        pieces = pattern.split(text.encode()) if pattern else [text.encode()]
        for i, piece in enumerate(pieces):
            if i % 2:  # what split() keeps of the pattern
                ids.append(self.specials[piece])
                continue
            plain = piece.decode()
            if vocab.flags & NORMALISE:
                plain = unicodedata.normalize("NFC", plain)
            for word in words_of(plain, vocab.pre):
                ids += self._merge(word.encode())
        return ids

    def _merge(self, word):
        if self.vocab.flags & WORDS_FIRST:
            id = self._find(word)
            if id is not None and self.vocab.types[id] == NORMAL:
                return [id]
        ids = [id for id in (self.vocab.byte_ids[byte] for byte in word) if id != NONE]
        ranks = [self._rank(*pair) for pair in zip(ids, ids[1:])]
        while ranks and (rank := min(ranks)) != NONE:
            at = ranks.index(rank)
            ids[at:at + 2] = [MERGE.unpack_from(self.merges, rank * MERGE.size)[2]]
            del ranks[at]
            for i in (at - 1, at):
                if 0 <= i < len(ranks):
                    ranks[i] = self._rank(ids[i], ids[i + 1])
        return ids

    def _rank(self, left, right):
        """The number of the merge of these two, the lowest merges first; NONE: they do not."""
        i = ((left << 32 | right) * 0x9E3779B97F4A7C15 & MASK64) >> 32
        while (rank := self.merge_slots[i % len(self.merge_slots)]) != NONE:
            if MERGE.unpack_from(self.merges, rank * MERGE.size)[:2] == (left, right):
                return rank
            i += 1
        return NONE

    def _find(self, text):
        """The token with exactly these bytes, or None."""
        hash = 0xCBF29CE484222325
        for byte in text:
            hash = (hash ^ byte) * 0x100000001B3 & MASK64
        i = (hash ^ hash >> 32) & 0xFFFFFFFF
        while (id := self.token_slots[i % len(self.token_slots)]) != NONE:
            if self.vocab.raw_bytes(id) == text:
                return id
            i += 1
        return None
