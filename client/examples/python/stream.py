#!/usr/bin/env python3
"""stream.py [-n TOKENS] PROMPT: what comes after it, while it is made.

Ctrl-C asks that it end. The daemon answers with an end like any other, and what was made stays.
"""

import argparse
import signal
import sys

import cb


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[1].strip())
    parser.add_argument("prompt")
    parser.add_argument("-n", dest="limit", metavar="TOKENS", type=int, default=None)
    options = parser.parse_args()

    with cb.connect(name="stream.py") as client:
        request = client.submit(options.prompt, max_new_tokens=options.limit)
        # Not KeyboardInterrupt: raised in the midst of a call it could lose what that had in hand.
        signal.signal(signal.SIGINT, lambda *_: request.cancel())
        for piece in request.text_stream():
            print(piece, end="", flush=True)
        print()
        print(f"{len(request.tokens)} tokens, until {request.end}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except cb.Error as e:
        sys.exit(f"stream.py: {e}")
