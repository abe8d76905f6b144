"""bells.py INSTANCE WAKE ROUNDS: sleeps without a net.

Whoever waits here sleeps until it is rung, however long that takes, and so does the daemon that is
asked. So a bell that is lost is a round that never ends. Each round has the four reasons for a
bell to the daemon: a request, room for one that waits in the ring, a cancel, a pause. It begins
where the numbers of sleeps and pauses are about to begin anew, and behind more descriptors than
select() knows.
"""

import os
import resource
import sys

import cb
import cb.futex

HANG_S = 60
cb.futex.SLICE_S = 3600


def main():
    instance, wake, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
    while most > 1100 and os.dup(2) < 1050:
        pass
    # A pool of one context: of two that ask for most of it the second waits for the first's run.
    with cb.connect(instance, wake=wake, pool_bytes=1) as client:
        client.lane.parked = client.lane.pause_word = 2**32 - 10
        large = {"max_new_tokens": 1800, "times": True, "epochs": True, "logprobs": True}
        end = client.vocab.n_tokens - 1  # it is the null model's end of sequence
        for i in range(rounds):
            assert client.submit([i, 1], max_new_tokens=1).result(HANG_S).end == "length"

            first, second = (client.submit([i, k], first_id=end, **large) for k in (1, 2))
            assert second.result(HANG_S).end == first.end == "eos"

            client.pause()
            request = client.submit([i, 2])
            request.cancel()
            assert request.result(HANG_S).end == "cancelled"
            request = client.submit([i, 3], max_new_tokens=2)
            client.resume()
            assert request.result(HANG_S).end == "length"


main()
