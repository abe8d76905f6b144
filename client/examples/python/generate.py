#!/usr/bin/env python3
"""generate.py [-n TOKENS] PROMPT: what comes after it, three times.

The three sequences are drawn side by side: the lane takes them in as one request, the
daemon computes the prompt once and runs them in the same steps.
"""

import argparse
import sys

import cb


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[1].strip())
    parser.add_argument("prompt")
    parser.add_argument("-n", dest="limit", metavar="TOKENS", type=int, default=32)
    options = parser.parse_args()

    with cb.connect(name="generate.py") as client:
        sequences = client.submit_children(3, options.prompt, max_new_tokens=options.limit,
                                           temperature=0.8, seed=1)
        for i, sequence in enumerate(sequences):
            sequence.result()
            print(f"[{i + 1}] {sequence.text()}")


if __name__ == "__main__":
    try:
        main()
    except cb.Error as e:
        sys.exit(f"generate.py: {e}")
