"""tears.py: that a word of shared memory is stored whole by the way that lane.py has.

One process stores two numbers in turn, the other must never see a third. By struct.pack_into it
would: that writes zeros first.
"""

import mmap
import os
import signal

N_LOOKS = 300_000


def watch(code):
    """Looks at a word while a child stores it."""
    segment = mmap.mmap(-1, mmap.PAGESIZE)
    words = memoryview(segment).cast(code)
    one = int.from_bytes(b"\x5a" * words.itemsize, "little")
    other = int.from_bytes(b"\xa5" * words.itemsize, "little")
    words[1] = one
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        while os.getppid() == parent:
            for _ in range(1000):
                words[1] = other
                words[1] = one
        os._exit(0)
    try:
        seen = {words[1] for _ in range(N_LOOKS)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen <= {one, other}, [hex(word) for word in sorted(seen)]


watch("Q")
watch("I")
