"""Sleeping on a word of shared memory: the one thing here that needs ctypes.

Python has no futex call, nor does it tell where a mapping lies. The word is in DOWN, which we can't
write; to sleep on it, reading is enough. The futex is a shared one (no FUTEX_PRIVATE_FLAG): the
kernel knows the word by its file and page, so the daemon's mapping and ours are the same queue.
"""

import ctypes
import errno

FUTEX_WAIT = 0
SYS_FUTEX = 202  # of x86-64, which lane.py asks for
SLICE_S = 0.05   # a futex does not tell of the daemon's death: who sleeps must look in between


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("ns", ctypes.c_long)]


class _Buffer(ctypes.Structure):
    """Py_buffer, of which we want the first word."""
    _fields_ = [("address", ctypes.c_void_p), ("rest", ctypes.c_byte * 120)]


class Bell:
    def __init__(self, segment, off):
        self._buffer = _Buffer()  # holds the mapping until it is released
        api = ctypes.pythonapi
        api.PyObject_GetBuffer(ctypes.py_object(segment), ctypes.byref(self._buffer), 0)
        self._word = ctypes.c_void_p(self._buffer.address + off)
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall  # gives the GIL up meanwhile

    def close(self):
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._buffer))

    def wait(self, seen, seconds):
        """Until the word is not `seen` any more, or it rings; False: for a slice of time."""
        ns = int(min(SLICE_S, SLICE_S if seconds is None else max(0, seconds)) * 1e9)
        timeout = _Timespec(ns // 10**9, ns % 10**9)
        r = self._syscall(SYS_FUTEX, self._word, FUTEX_WAIT, ctypes.c_uint(seen),
                          ctypes.byref(timeout), None, 0)
        return r == 0 or ctypes.get_errno() != errno.ETIMEDOUT
