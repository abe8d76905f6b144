"""goes_on.py INSTANCE PID: kills its daemon in mid-stream, and goes on with the next one."""

import os
import signal
import sys
import time

import cb

HANG_S = 60
PROMPT = [5, 17, 300, 4, 9]
PLAIN = {"max_new_tokens": 120}
SAMPLED = {"max_new_tokens": 120, "temperature": 1, "seed": 3, "child_idx": 2, "top_logprobs": 2,
           "stops": ["no such text"]}


def connect(instance):
    """The next daemon is there in a moment."""
    end = time.monotonic() + HANG_S
    while True:
        try:
            return cb.connect(instance)
        except (cb.NoDaemon, cb.Lost):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def broken_off(instance, pid):
    """Two requests that were under way when their daemon died, and what they would have become."""
    with connect(instance) as client:
        whole = [client.submit(PROMPT, **w).result(HANG_S) for w in (PLAIN, SAMPLED)]
        requests = [client.submit(PROMPT, **w) for w in (PLAIN, SAMPLED)]
        for request in requests:
            while len(request.tokens) < 5:
                assert client.wait_for(request, HANG_S)
        os.kill(pid, signal.SIGKILL)
        for request in requests:
            try:
                request.result(HANG_S)
                raise AssertionError("it ended before its daemon")
            except cb.Failed as e:
                assert e.status == "LOST" and len(request.tokens) < 120, (e, request.tokens)
        try:
            client.submit(PROMPT)
            raise AssertionError("a lane without a daemon takes requests")
        except cb.Lost:
            pass
    return whole, requests


def main():
    instance, pid = sys.argv[1], int(sys.argv[2])
    whole, requests = broken_off(instance, pid)
    with connect(instance) as client:
        for before, request in zip(whole, requests):
            n = len(request.tokens)
            again = client.go_on(request)
            new = list(again.stream(HANG_S))
            assert new == again.tokens == before.tokens, (n, new, before.tokens)
            assert again.end == before.end == "length" and again.n_prompt == before.n_prompt
            assert again.top_logprobs == before.top_logprobs[n:]
        request = client.submit(PROMPT, max_new_tokens=4).result(HANG_S)
        request.fingerprint = bytes(16)  # as of another model
        try:
            client.go_on(request).result(HANG_S)
            raise AssertionError("it goes on with another model")
        except cb.Refused as e:
            assert e.status == "CHANGED", e


main()
