"""A lane: the two rings, the slots, the arena, and the words by which both sides wake each other.

How memory is shared with Python, and why this is enough on x86-64:

* A word is loaded and stored through memoryview.cast("I") or .cast("Q"). CPython copies such an
  item by a memcpy of a constant 4 or 8 bytes, which its compiler makes a single `mov`; and an
  aligned `mov` is never seen half done. (Aligned they are: mmap gives whole pages, and the format
  has no odd offsets.) It is `struct.pack_into` that would tear: see wire.py.
* x86-64 keeps loads in order, stores in order, and a store behind the loads before it. So a plain
  load is an acquire load, a plain store a release store, and "write the entry, then the cursor"
  needs no more than being written in that order: the interpreter does not reorder what it runs,
  and each access is a call that no compiler sees through.
* What x86-64 does not keep is a store before a later load of another word: it may still wait in
  the store buffer. That matters wherever we publish something and then look whether the daemon
  sleeps; there fence() stands between.

On a machine of weaker order, such as aarch64, the second point is wrong: what was stored first may
be seen last. No fence that Python has mends that, so such machines are refused.
"""

import platform
from threading import Lock

from . import wire
from .errors import error

WORD = 0xFFFFFFFF  # numbers that count sleeps and pauses begin anew behind it

ORDER_IS_STRONG = platform.machine() in ("x86_64", "AMD64")


def fence():
    """A full fence: what was stored before is visible before anything is loaded after.

    Taking a lock that nobody holds is a `lock cmpxchg`: in sem_trywait, of glibc and of musl, or
    where CPython has locks of its own, in these. On x86-64 an instruction with the lock prefix is a
    full fence. The lock is a new one each time, which nobody can hold: of one that is held,
    sem_trywait says so after a plain load."""
    Lock().acquire(False)


class Arena:
    """Which bytes of UP hold prompts and options not yet taken in: pieces, first fit."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes
        self.held = []  # (offset, end), ascending

    def take(self, n):
        """The offset of n bytes, a multiple of 8; None: there is no room now."""
        start = 0
        n = -(-n // 8) * 8
        for i, (off, end) in enumerate(self.held + [(self.n_bytes, 0)]):
            if off - start >= n:
                self.held.insert(i, (start, start + n))
                return start
            start = end
        return None

    def release(self, off):
        self.held = [piece for piece in self.held if piece[0] != off]


class Lane:
    """The client's end. `ring` is called where the daemon sleeps and has something to do."""

    def __init__(self, geometry, up, down, ring):
        if not ORDER_IS_STRONG:
            raise error("VERSION", where="this client needs the memory order of x86-64")
        g = self.geometry = geometry
        self.ring = ring
        self.up, self.down = memoryview(up), memoryview(down)
        self.up32, self.up64 = self.up.cast("I"), self.up.cast("Q")
        self.down32, self.down64 = self.down.cast("I"), self.down.cast("Q")
        # Our own cursors are the truth, and are never read back. They begin where the daemon's are.
        self.req_sent = self.req_taken = self.down64[wire.DOWN_REQ_TAKEN // 8]
        self.res_taken = self.down64[wire.DOWN_RES_SENT // 8]
        self.up64[wire.UP_REQ_SENT // 8] = self.req_sent
        self.up64[wire.UP_RES_TAKEN // 8] = self.res_taken
        self.arena = Arena(g.up_arena_bytes)
        self.free = list(range(g.n_slots))  # the one that has been free longest comes first
        self.gens = [0] * g.n_slots         # a slot's present or last generation
        self.parked = self.pause_word = 0
        self.notice = self.pause_seen = 0   # as last read
        self.rung = 0                       # for which `doze` a bell was sent

    def close(self):
        for view in (self.up32, self.up64, self.down32, self.down64, self.up, self.down):
            view.release()

    def set_name(self, name):
        text = name.encode()[:63]
        self.up[wire.UP_NAME:wire.UP_NAME + len(text)] = text

    # ---- waking the daemon ---------------------------------------------------------------------

    def _ring_if_dozing(self):
        """After a fence. One bell is enough for each sleep, and each sleep has an odd number of its
        own. It is loaded before the bell is sent: a later sleep needs another."""
        doze = self.down32[wire.DOWN_DOZE // 4]
        if doze & 1 and doze != self.rung:
            self.rung = doze
            self.ring()

    def _ring_if_waiting(self):
        """The same for what matters only while a request waits in the ring: room that was made."""
        if self.req_sent != self._load_req_taken():
            self._ring_if_dozing()

    # ---- requests ------------------------------------------------------------------------------

    def _load_req_taken(self):
        taken = self.down64[wire.DOWN_REQ_TAKEN // 8]
        if (taken - self.req_taken) & wire.WRAP > (self.req_sent - self.req_taken) & wire.WRAP:
            raise error("LOST", where="the daemon took requests that were not sent")
        self.req_taken = taken
        return taken

    def _find_slots(self, n):
        """The first of n slots in a row that are free. One alone: that which was free longest, so
        that a generation comes again as late as can be."""
        if n == 1 and self.free:
            return self.free[0]
        free = set(self.free)
        for slot in range(self.geometry.n_slots - n + 1):
            if free.issuperset(range(slot, slot + n)):
                return slot
        raise error("BUSY")

    def _next_generation(self, slots):
        """One that is new to each of them: behind the newest, in the serial order of 24 bits."""
        newest = self.gens[slots[0]]
        for slot in slots:
            ahead = (self.gens[slot] - newest) % wire.GENERATIONS
            if self.gens[slot] and (newest == 0 or 0 < ahead < wire.GENERATIONS // 2):
                newest = self.gens[slot]
        return newest % (wire.GENERATIONS - 1) + 1

    def submit(self, entry, prompt, options, n_children=1):
        """Sends a request. `entry` makes its 128 bytes of slot, generation and the two offsets.
        Returns slots, generation and the arena offset, to be released with the first answer."""
        g = self.geometry
        slot = self._find_slots(n_children)
        if (self.req_sent - self._load_req_taken()) & wire.WRAP >= g.req_capacity:
            raise error("BUSY")
        prompt = wire.padded(prompt, 8)
        off = self.arena.take(len(prompt) + len(options))
        if off is None:
            raise error("BUSY")
        slots = range(slot, slot + n_children)
        gen = self._next_generation(slots)
        at = g.up_arena_off + off
        self.up[at:at + len(prompt)] = prompt
        self.up[at + len(prompt):at + len(prompt) + len(options)] = options
        for i in slots:
            self.free.remove(i)
            word = g.up_slots_off // 4 + 2 * i
            self.up32[word] = 0  # cancel_gen: that of 2^24 uses ago would match again
            self.up32[word + 1] = self.gens[i]  # free_gen: 0 could undo a free not yet seen
            self.gens[i] = gen
        at = g.up_ring_off + self.req_sent % g.req_capacity * g.req_stride
        opt_off = off + len(prompt) if options else 0
        self.up[at:at + wire.ENTRY.size] = entry(slot, gen, off, opt_off)
        self.req_sent = (self.req_sent + 1) & wire.WRAP
        self.up64[wire.UP_REQ_SENT // 8] = self.req_sent  # release: all of the above comes before
        fence()
        self._ring_if_dozing()
        return slots, gen, off

    def cancel(self, slot, gen):
        """Asks that it end. The C library replaces the word by compare-and-swap, for two threads
        may be here with two generations; of this lane one thread at a time makes use, so a store
        does."""
        if self.gens[slot] == gen:
            self.up32[self.geometry.up_slots_off // 4 + 2 * slot] = gen
            fence()
            self._ring_if_dozing()

    def give_back(self, slot):
        """Its end was read, and all of its run: the daemon may use that again."""
        self.free.append(slot)
        self.up32[self.geometry.up_slots_off // 4 + 2 * slot + 1] = self.gens[slot]
        fence()
        self._ring_if_waiting()

    def pause(self, wanted):
        """Whether requests of this lane shall stand still, by a new odd or even number."""
        self.pause_word = (self.pause_word + 1 | 1 if wanted else self.pause_word + 1 & ~1) & WORD
        self.up32[wire.UP_PAUSE // 4] = self.pause_word
        fence()
        self._ring_if_dozing()

    def is_paused(self):
        self.pause_seen = self.down32[wire.DOWN_PAUSE_SEEN // 4]
        return self.pause_word & 1 == 1 and self.pause_seen == self.pause_word

    # ---- results -------------------------------------------------------------------------------

    def poll(self):
        """The next result entry, or None. Never parks: the daemon would ring at every step."""
        g = self.geometry
        used = (self.down64[wire.DOWN_RES_SENT // 8] - self.res_taken) & wire.WRAP  # acquire
        if used == 0:
            return None
        if used > g.res_capacity:
            raise error("LOST", where="the daemon sent more results than there is room for")
        at = g.down_ring_off + self.res_taken % g.res_capacity * g.res_stride
        entry = wire.Result(*wire.RESULT.unpack_from(self.down, at))
        self.res_taken = (self.res_taken + 1) & wire.WRAP
        self.up64[wire.UP_RES_TAKEN // 8] = self.res_taken
        # The daemon adds no TOKENS entry for a slot while one is unread, it only moves `emitted`.
        # It stores that, fences, and looks whether we gave the entry back. We give it back, fence,
        # and look at `emitted`: whoever comes second sees the other, so no token stays behind.
        fence()
        self._ring_if_waiting()
        return entry

    def _slot_at(self, slot):
        return self.geometry.down_slots_off + slot * self.geometry.slot_stride

    def emitted(self, slot):
        """How many ids of the slot's run can be read, with their planes."""
        return self.down32[(self._slot_at(slot) + wire.SLOT_EMITTED) // 4]

    def record(self, slot):
        """The slot's record. `ctl` is loaded first: with it comes the record, and the end. Until
        then only what does not change any more, such as out_off, may be made use of."""
        ctl = self.down32[self._slot_at(slot) // 4]
        emitted = self.emitted(slot)
        record = wire.Slot(*wire.SLOT.unpack_from(self.down, self._slot_at(slot)))
        return record._replace(ctl=ctl, emitted=min(emitted, record.out_cap))

    def run(self, off, first, n, code):
        """Elements [first, first + n) of what begins at `off` of DOWN, copied out, as a list.
        `code` is that of the array module: "I", "Q", "f"."""
        g = self.geometry
        size = 8 if code == "Q" else 4
        if off % size or off < g.down_pool_off or (
                off + (first + n) * size > g.down_pool_off + g.down_pool_bytes):
            raise error("LOST", where="a run lies outside the pool")
        return self.down[off + first * size:off + (first + n) * size].cast(code).tolist()

    # ---- sleeping ------------------------------------------------------------------------------

    def closed(self):
        return self.down32[wire.DOWN_CLOSED // 4]

    def look(self):
        """Takes note of what park() must not sleep on."""
        self.notice = self.down32[wire.DOWN_NOTICE // 4]
        self.pause_seen = self.down32[wire.DOWN_PAUSE_SEEN // 4]

    def bell(self):
        """The word that the daemon moves before it wakes: to be loaded before park()."""
        return self.down32[wire.DOWN_BELL // 4]

    def park(self):
        """Says that we sleep, by a new odd number, and looks once more: True if we may."""
        self.parked = (self.parked + 1 | 1) & WORD
        self.up32[wire.UP_PARKED // 4] = self.parked
        fence()  # the daemon publishes, fences, looks at `parked`
        return (self.down64[wire.DOWN_RES_SENT // 8] == self.res_taken
                and self.down32[wire.DOWN_NOTICE // 4] == self.notice
                and self.down32[wire.DOWN_PAUSE_SEEN // 4] == self.pause_seen
                and self.closed() == 0)

    def unpark(self):
        self.parked = self.parked + 1 & WORD
        self.up32[wire.UP_PARKED // 4] = self.parked
