"""The control socket: finding a daemon, shaking hands, ringing.

Nothing of a request goes over it. It carries the handshake, with the descriptors of the lane, then
bells; and its end is how either side learns of the other's death.
"""

import errno
import mmap
import os
import select
import socket
import stat
import struct
import time
from pathlib import Path
from typing import NamedTuple

from . import wire
from .errors import Error, error

HANDSHAKE_S = 2.0


class Welcome(NamedTuple):
    """What the daemon granted."""
    lane_id: int
    features: int
    boot_id: bytes
    fingerprint: bytes
    geometry: wire.Geometry
    weight_epoch: int
    up: mmap.mmap
    down: mmap.mmap
    vocab: mmap.mmap


# ---- finding one -------------------------------------------------------------------------------

def run_dirs():
    """Where daemons are looked for, in this order."""
    if os.environ.get("CBD_RUNTIME_DIR"):
        yield Path(os.environ["CBD_RUNTIME_DIR"])
    if os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(os.environ["XDG_RUNTIME_DIR"], "cbd")
    yield Path("/run/cbd")
    yield Path(f"/tmp/cbd-{os.geteuid()}")


def _is_trusted(uid, directory, trusted_uids):
    """Anybody can make /tmp/cbd-UID, and a socket in it: what counts is whose daemon listens. Where
    root alone may write the directory above, whoever owns the instance's was let in by root."""
    if uid in (0, os.geteuid()) or uid in trusted_uids:
        return True
    above, own = directory.parent.lstat(), directory.lstat()
    return (stat.S_ISDIR(above.st_mode) and above.st_uid == 0 and not above.st_mode & 0o022
            and stat.S_ISDIR(own.st_mode) and own.st_uid == uid)


def _connect_to(directory, trusted_uids):
    """The socket of the daemon that serves in this directory."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    path = directory / "sock"
    end = time.monotonic() + HANDSHAKE_S
    try:
        # Whoever listens there may never take anybody in, and need not be one whom we trust.
        sock.setblocking(False)
        while (failed := sock.connect_ex(str(path))) == errno.EAGAIN and time.monotonic() < end:
            time.sleep(0.001)
        if failed:
            raise OSError(failed, os.strerror(failed))
        sock.setblocking(True)
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if not _is_trusted(uid, directory, trusted_uids):
            raise error("UNTRUSTED", where=path)
        return sock
    except PermissionError:
        reason = error("DENIED", where=path)
    except OSError:
        reason = error("NO_DAEMON", where=path)
    except Error as e:
        reason = e
    sock.close()
    raise reason from None


def find(instance, run_dir, trusted_uids):
    """The socket of the first daemon that is there and may be trusted."""
    if not instance or "/" in instance or instance.startswith("."):
        raise error("INVALID", where=f"no name of an instance: {instance!r}")
    reason = None
    for directory in [Path(run_dir)] if run_dir else run_dirs():
        try:
            return _connect_to(directory / instance, trusted_uids)
        except Error as e:
            if reason is None or reason.status == "NO_DAEMON":  # a better reason than "not there"
                reason = e
    raise reason


# ---- the handshake -----------------------------------------------------------------------------

def await_record(sock, seconds):
    """Whether one came, or the end, within so many seconds (None: however long it takes). Not by
    select(), which knows no descriptor from 1024 on."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(None if seconds is None else max(0, seconds) * 1000))


def _receive(sock):
    """The answer to HELLO, a whole record, and the descriptors that came with it."""
    end = time.monotonic() + HANDSHAKE_S
    while True:
        if not await_record(sock, end - time.monotonic()):
            raise error("TIMEOUT", where="the daemon says nothing")
        try:
            record, fds, flags, _ = socket.recv_fds(sock, wire.RECORD_BYTES, 4,
                                                    socket.MSG_CMSG_CLOEXEC)
            break
        except ConnectionResetError:
            pass  # told once: it closed without reading HELLO. The next read has what it said
    if len(record) == wire.RECORD_BYTES and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        return record, fds
    for fd in fds:
        os.close(fd)
    if not record:
        raise error("LOST", where="the daemon hung up during the handshake")
    raise error("BAD_RECORD", where="the daemon's answer")


def _map(record, fds):
    """What a WELCOME with its descriptors brings: checked, and mapped."""
    (_, kind, _, version, lane_id, features, boot_id, fingerprint, geometry, vocab_bytes,
     _, _, _, _, _, weight_epoch, _) = wire.WELCOME_RECORD.unpack(record)
    if kind != wire.WELCOME or len(fds) != 4:
        raise error("BAD_RECORD", where="the daemon's answer")
    if version != wire.FORMAT:
        raise error("VERSION")
    g = wire.Geometry(*wire.GEOMETRY.unpack(geometry))
    if features & ~wire.FEATURES or not g.is_sane():
        raise error("BAD_RECORD", where="WELCOME")
    up_fd, down_fd, _status_fd, vocab_fd = fds
    # mmap itself looks whether each file is so long. Only UP can be mapped for writing.
    up = mmap.mmap(up_fd, g.up_bytes)
    down = mmap.mmap(down_fd, g.down_bytes, prot=mmap.PROT_READ)
    vocab = mmap.mmap(vocab_fd, vocab_bytes, prot=mmap.PROT_READ)
    head = wire.DOWN_FIXED.pack(wire.MAGIC, wire.FORMAT, lane_id, boot_id, fingerprint, geometry)
    if down[:len(head)] != head:
        raise error("BAD_RECORD", where="the lane's head")
    return Welcome(lane_id, features, boot_id, fingerprint, g, weight_epoch, up, down, vocab)


def shake_hands(sock, name, wake, n_slots=0, arena_bytes=0, pool_bytes=0):
    """HELLO, then WELCOME or REFUSED. After it the lane is ours to prepare, until ready()."""
    try:
        sock.send(wire.HELLO_RECORD.pack(
            wire.RECORD_MAGIC, wire.HELLO, 0, wire.FORMAT, wire.FORMAT, wire.FEATURES,
            8, 0x01020304, n_slots, wake, arena_bytes, pool_bytes,
            b"python", name.encode()[:63]))
    except (BrokenPipeError, ConnectionResetError):
        pass  # it hung up already, and has said why
    record, fds = _receive(sock)
    try:
        magic, kind, _ = wire.HEAD.unpack_from(record)
        if magic == wire.RECORD_MAGIC and kind == wire.REFUSED:
            _, _, _, status, *detail = wire.REFUSED_RECORD.unpack(record)
            raise error(status, detail, "the daemon refused")
        return _map(record, fds)
    except (OSError, ValueError) as e:  # of mmap
        raise error("BAD_RECORD", where=f"mapping the lane: {e}") from None
    finally:
        for fd in fds:
            os.close(fd)


# ---- afterwards --------------------------------------------------------------------------------

def send(sock, kind):
    """READY, BYE, BELL. False: the daemon is gone. A full socket holds bells enough."""
    try:
        sock.send(wire.PLAIN.pack(wire.RECORD_MAGIC, kind, 0), socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass
    except OSError:
        return False
    return True


def empty(sock):
    """Reads all records there are: what they say stands in the lane. False: the daemon is gone."""
    try:
        while sock.recv(wire.RECORD_BYTES, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
