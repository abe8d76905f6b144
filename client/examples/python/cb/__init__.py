"""A client of cbd in standard-library Python, 3.10 or later: cb_shm(7), spoken by something that
is not C.

In reading order: wire.py (layouts), control.py (the socket), lane.py (shared memory), wishes.py and
request.py (what goes in and comes out), client.py (all of it together), text.py and
encode.py, futex.py.
"""

from .client import Client, connect
from .errors import Busy, Error, Failed, Lost, NoDaemon, Refused, Timeout
from .request import Request
from .wishes import Wishes

__all__ = ["Busy", "Client", "Error", "Failed", "Lost", "NoDaemon", "Refused", "Request", "Timeout",
           "Wishes", "connect"]
