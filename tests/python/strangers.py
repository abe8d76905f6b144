"""strangers.py DIR: a socket in DIR listens and takes nobody in: who looks for a daemon goes on."""

import os
import socket
import sys

import cb

os.mkdir(f"{sys.argv[1]}/full")
path = f"{sys.argv[1]}/full/sock"
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(path)
listener.listen(0)
waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
waiting.connect(path)  # all there is room for
try:
    cb.connect("full", run_dir=sys.argv[1])
    print("connected")
except cb.Error as e:
    print(e.status)
waiting.close()
listener.close()
