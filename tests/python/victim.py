"""victim.py INSTANCE SEED: asks for this and that, cancels some of it, and never ends by itself."""

import random
import sys

import cb


def main():
    instance, draw = sys.argv[1], random.Random(int(sys.argv[2]))
    with cb.connect(instance, wake=draw.choice(("socket", "futex"))) as client:
        running = []
        print("there", flush=True)
        while True:
            prompt = [draw.randrange(49152) for _ in range(draw.randrange(1, 100))]
            try:
                running.append(client.submit(prompt, max_new_tokens=draw.randrange(200),
                                             temperature=draw.choice((0, 1)), times=True))
            except cb.Busy:
                client.wait()
            if running and draw.random() < 0.2:
                draw.choice(running).cancel()
            client.wait(0.01)
            running = [request for request in running if not request.is_done]


main()
