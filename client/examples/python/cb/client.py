"""The client: connects, sends requests, takes their results as they come, sleeps meanwhile.

    import cb
    with cb.connect() as client:
        for piece in client.submit("The sea is", max_new_tokens=16).text_stream():
            print(piece, end="", flush=True)

One thread at a time may use a client; programs with several open one for each. A child of fork()
opens its own. A signal handler may cancel a request, and nothing else: after one that raised an
exception out of a call, KeyboardInterrupt among them, close the client, for what that call had in
hand may be lost.
"""

import os
import random
import select
import sys
import time

from . import control, wire
from .errors import Busy, Error, Failed, code_of, error
from .lane import Lane
from .request import Request
from .text import Vocab
from .wishes import Wishes

LIFE_S = 0.05  # between two looks whether the daemon lives


def connect(instance="default", *, run_dir=None, name=None, wake="socket", n_slots=0, arena_bytes=0,
            pool_bytes=0, trusted_uids=()):
    """Connects to the daemon that serves this instance. `wake` is how it wakes us: "socket", so
    that fileno() can be given to an event loop, or "futex"."""
    sock = control.find(instance, run_dir, trusted_uids)
    name = name or os.path.basename(sys.argv[0]) or "python"
    try:
        welcome = control.shake_hands(
            sock, name, wire.WAKE_FUTEX if wake == "futex" else wire.WAKE_SOCKET,
            n_slots, arena_bytes, pool_bytes)
        client = Client(sock, welcome, wake)
        client.lane.set_name(name)
        if not control.send(sock, wire.READY):
            raise error("LOST", where="the daemon hung up during the handshake")
    except BaseException:
        sock.close()
        raise
    return client


class Client:
    """A connection: one lane, and the requests that are in it."""

    def __init__(self, sock, welcome, wake):
        self.sock = sock
        self.welcome = welcome
        self.lane = Lane(welcome.geometry, welcome.up, welcome.down, self._ring)
        self.vocab = Vocab(welcome.vocab)
        self.running = {}  # a slot: its request
        self.lost = None   # the status that ended the lane
        self._moved = {}   # requests with something new, in order (a set would forget that)
        self._pid = os.getpid()
        self._life_seen = time.monotonic()
        self._bell = None
        if wake == "futex":
            from .futex import Bell  # only here is ctypes needed
            self._bell = Bell(welcome.down, wire.DOWN_BELL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends what still runs. The daemon takes back what was lent."""
        if self.sock.fileno() < 0:
            return
        if os.getpid() == self._pid:
            control.send(self.sock, wire.BYE)
        self.sock.close()
        self.lost = self.lost or "LOST"
        if self._bell:
            self._bell.close()
        self.lane.close()
        self.vocab.close()
        for segment in (self.welcome.up, self.welcome.down, self.welcome.vocab):
            segment.close()

    def _check(self):
        if os.getpid() != self._pid:
            raise error("FORKED")
        if self.lost:
            raise error(self.lost)

    def _ring(self):
        """One that can't be sent means that the daemon has gone, which the next poll finds."""
        control.send(self.sock, wire.BELL)

    # ---- requests ------------------------------------------------------------------------------

    def submit(self, prompt, **wishes):
        """Sends a request for what comes after this text, or these ids; see Wishes. Never waits:
        Busy if there is no room now."""
        return self._send(prompt, Wishes(**wishes), 1)[0]

    def submit_children(self, n, prompt, **wishes):
        """n requests of one prompt, which is computed once; each draws by its own child index."""
        return self._send(prompt, Wishes(**wishes), n)

    def go_on(self, request):
        """Sends again what another connection did not bring to its end. It goes on where it stood,
        with the very tokens it would have had; a deadline counts anew. Refused (CHANGED) if the
        model or its arithmetic is another now."""
        if request.weight_epoch != request.first_epoch:
            raise error("CHANGED")
        return self._send(request.prompt, request.wishes, 1, request)[0]

    def _send(self, prompt, wishes, n, before=None):
        self._check()
        wishes.check()
        if isinstance(prompt, str):
            prompt = self.vocab.encode(prompt)
        if not prompt:
            raise error("EMPTY_PROMPT")
        if not 1 <= n <= min(64, self.lane.geometry.n_slots):
            raise error("INVALID", where=f"{n} sequences of 1 to 64, and the lane's slots")
        seed = before.seed if before else wishes.seed
        if seed is None:
            seed = random.getrandbits(53)
        given = before.tokens if before else []
        ids = wire.words(prompt) + wire.words(given)
        options = wishes.options(before.resume_record() if before else b"")
        entry = wishes.entry(len(prompt) + len(given), len(options), seed, n, len(given))
        try:
            slots, gen, off = self.lane.submit(entry, ids, options, n)
        except Busy:
            self._drain()  # what the daemon has taken in and ended by now makes room
            slots, gen, off = self.lane.submit(entry, ids, options, n)
        requests = [Request(self, prompt, wishes, seed, i, slot, gen, before)
                    for i, slot in enumerate(slots)]
        requests[0]._arena_off = off  # all are answered in one
        self.running.update(zip(slots, requests))
        return requests

    def cancel(self, request):
        """Asks that it end; its end says whether that came in time. What has ended stays so."""
        self._check()
        if not request.is_done:
            self.lane.cancel(request.slot, request.gen)

    def pause(self):
        """Requests of this client stand still from the end of the present step on."""
        self._check()
        self.lane.pause(True)
        while not self.lane.is_paused() and not self.lost:
            self._sleep(None)
            self._drain()
        self._check()

    def resume(self):
        self._check()
        self.lane.pause(False)

    # ---- results -------------------------------------------------------------------------------

    def poll(self):
        """The requests that have something new: tokens, or their end. Never waits."""
        if not self.lost:
            self._check()
            self._drain()
        moved, self._moved = list(self._moved), {}
        return moved

    def wait(self, timeout=None):
        """As poll, but sleeps until there is something: [] after so many seconds, or if nothing
        runs."""
        self._sleep_until(lambda: self._moved or not self.running, timeout)
        return self.poll()

    def wait_for(self, request, timeout=None):
        """Sleeps until this one has something new; what others have stays for poll. False: it has
        nothing, after so many seconds."""
        self._sleep_until(lambda: request in self._moved or request.is_done, timeout)
        has_moved = request in self._moved
        self._moved.pop(request, None)
        return has_moved or request.is_done

    def _sleep_until(self, is_there, timeout):
        end = None if timeout is None else time.monotonic() + timeout
        while not self.lost:
            self._check()
            self._drain()
            left = None if end is None else end - time.monotonic()
            if is_there() or self.lost or (left is not None and left <= 0):
                return
            self._sleep(left)

    def _drain(self):
        """Takes in all results there are, and finds out whether the lane has ended."""
        idle = True
        while (entry := self.lane.poll()) is not None:
            self._take(entry)
            idle = False
        self.lane.look()
        closed = self.lane.closed()
        if closed:
            self._drain_last(closed)
        elif idle and time.monotonic() - self._life_seen > LIFE_S:
            self._life_seen = time.monotonic()
            if self._is_hung_up():
                self._lose("LOST")

    def _drain_last(self, closed):
        """It was closed after we looked for results: what came between is there now."""
        while (entry := self.lane.poll()) is not None:
            self._take(entry)
        self._lose("LOST" if closed == wire.CLOSED_STOPPED else "CLOSED")

    def _take(self, entry):
        request = self.running.get(entry.slot)
        if entry.type == wire.LANE or request is None or request.gen != entry.gen:
            return
        request.user = entry.user
        if request._arena_off is not None:
            self.lane.arena.release(request._arena_off)
            request._arena_off = None
        if entry.type == wire.ACCEPTED:
            return
        if entry.type == wire.TOKENS:
            # Not what the entry says: more may have been added to the run since it was written.
            request._pull(self.lane, self.lane.emitted(entry.slot))
        else:
            if entry.type == wire.REJECTED:
                status = entry.count - (1 << 32)  # a negative number in a word
                request._refuse(error(status, (entry.first, entry.last)))
            else:
                request._finish(self.lane, self.lane.record(entry.slot))
            del self.running[entry.slot]
            self.lane.give_back(entry.slot)
        self._moved[request] = None

    # ---- sleeping ------------------------------------------------------------------------------

    def fileno(self):
        """For event loops, with wake="socket": watch it for reading, and when it is readable, and
        at the start, call arm()."""
        return self.sock.fileno()

    def arm(self):
        """Asks that the socket become readable at the next result: then the requests that have
        something new by now, as poll."""
        moved = self.poll()
        if not self.lost:
            alive = control.empty(self.sock)
            self.lane.park()
            moved += [r for r in self.poll() if r not in moved]  # whatever park() said
            if not alive:
                self._lose("LOST")
                moved += self.poll()
        return moved

    def _sleep(self, seconds):
        """Until the daemon rings, or for so long, or less."""
        bell = self.lane.bell()
        alive = self._bell is not None or control.empty(self.sock)
        if self.lane.park() and alive:
            if self._bell is None:
                control.await_record(self.sock, seconds)
            elif not self._bell.wait(bell, seconds):
                alive = not self._is_hung_up()  # a futex tells of no death
        self.lane.unpark()
        if not alive:
            self._drain()
            self._lose("LOST")

    def _is_hung_up(self):
        """Bells in the socket stay there: only the death is asked for."""
        poller = select.poll()
        poller.register(self.sock, 0)
        return bool(poller.poll(0))

    def _lose(self, status):
        """The lane has ended. Of each request that has not, its slot is looked at once: more may be
        there than was told, even the end."""
        if self.lost:
            return
        self.lost = status
        stopped = self.lane.closed() == wire.CLOSED_STOPPED
        for slot, request in self.running.items():
            try:
                record = self.lane.record(slot)
                if record.ctl >> 8 == request.gen:
                    if record.ctl & 0xFF >= wire.SLOT_FINISHED:
                        request._finish(self.lane, record)
                    else:
                        request._pull(self.lane, record.emitted)
            except Error:
                pass  # half a record of one that was killed: what we have stands
            if not request.is_done:
                request._break_off(Failed(code_of("STOPPED" if stopped else status), request))
            self._moved[request] = None
        self.running.clear()
