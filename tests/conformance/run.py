#!/usr/bin/env python3
"""run.py [--wake futex] CASES.json GROUP INSTANCE: runs the cases of a group by the Python client,
and prints what came of each, one JSON object a line.

tests/programs/conformance.c, where the form of a case is told, does the same by the library.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "client/examples/python"))

import cb  # noqa: E402

IDS_SHOWN = 40
HANG_S = 60


# ---- a request from its JSON ---------------------------------------------------------------------

def ids_of(value):
    if isinstance(value, list):
        return value
    return [value.get("from", 0) + i * value.get("step", 1) for i in range(value["n"])]


def prompt_of(wishes, vocab):
    if "text" not in wishes:
        return ids_of(wishes["ids"])
    return vocab.encode(wishes["text"], special=wishes.get("parse_special", False),
                        bos=not wishes.get("no_bos", False))


def arguments_of(wishes, vocab):
    """Those of submit_children: n, prompt, and what is named as in the file."""
    rest = {key: value for key, value in wishes.items()
            if key not in ("n", "ids", "text", "parse_special", "no_bos")}
    for key in ("stop_ids", "allowed_ids", "banned_ids"):
        if key in rest:
            rest[key] = ids_of(rest[key])
    if "cache_salt" in rest:
        rest["cache_salt"] = rest["cache_salt"].encode()
    return wishes.get("n", 1), prompt_of(wishes, vocab), rest


# ---- what came of it -----------------------------------------------------------------------------

def refused(error):
    return {"refused": error.status, "words": str(error)}


def bits_of(x):
    return None if x != x else struct.unpack("<I", struct.pack("<f", x))[0]


def ids_shown(ids):
    if len(ids) <= IDS_SHOWN:
        return ids
    hash = 0xCBF29CE484222325
    for id in ids:
        hash = (hash ^ id) * 0x100000001B3 & (1 << 64) - 1
    return f"{len(ids)} ids, {hash:016x}"


def floats(list):
    return [bits_of(x) for x in list]


def best(places):
    return [[[id, bits_of(x)] for id, x in place] for place in places]


def outcome_of(request):
    if request.error and request.end is None:
        return refused(request.error)
    wishes = request.wishes
    o = {"end": request.end, "ids": ids_shown(request.tokens), "n_prompt": request.n_prompt,
         "user": request.user}
    if request.error:
        o["error"] = str(request.error)
    if len(request.tokens) <= IDS_SHOWN:
        o["text"] = request.text()
    if wishes.seed is not None:
        o["seed"] = request.seed
    if request.end == "stop":
        o["stop"] = [request.stop, request.stop_is_id]
    if wishes.logprobs or wishes.top_logprobs:
        o["logprobs"] = floats(request.logprobs)
        if wishes.top_logprobs:
            o["top"] = best(request.top_logprobs)
    if wishes.prompt_logprobs:
        o["prompt_logprobs"] = floats(request.prompt_logprobs)
        if wishes.top_logprobs:
            o["prompt_top"] = best(request.prompt_top_logprobs)
    if wishes.epochs:
        o["epochs"] = ids_shown(request.epochs)
    if wishes.times:
        times = request.times
        o["times"] = {"n": len(times), "ascend": times == sorted(times) and 0 not in times}
    return o


# ---- steps ---------------------------------------------------------------------------------------

class Run:
    """The sequences of a case: requests, and in the place of those that could not be sent, why."""

    def __init__(self, client):
        self.client = client
        self.sequences = []

    def submit(self, wishes):
        n, prompt, rest = arguments_of(wishes, self.client.vocab)
        try:
            self.sequences += self.client.submit_children(n, prompt, **rest)
        except cb.Error as e:
            self.sequences.append(e)

    def finish(self, i):
        if isinstance(self.sequences[i], cb.Error):
            return refused(self.sequences[i])
        try:
            self.sequences[i].result(HANG_S)
        except cb.Timeout:
            raise
        except cb.Error:
            pass  # it stands in the request
        return outcome_of(self.sequences[i])

    def take(self, i, n):
        request = self.sequences[i]
        while len(request.tokens) < n and not request.is_done:
            if not self.client.wait_for(request, HANG_S):
                raise TimeoutError("no token comes")

    def step(self, step):
        if "submit" in step:
            self.submit(step["submit"])
        elif "pause" in step:
            self.client.pause() if step["pause"] else self.client.resume()
        elif "cancel" in step:
            self.sequences[step["cancel"]].cancel()
        elif "await" in step:
            self.take(step["await"], step["tokens"])
        elif "finish" in step:
            self.finish(step["finish"])
        else:
            raise ValueError(f"an unknown step: {step}")


def run_case(case, instance, wake):
    try:
        client = cb.connect(instance, wake=wake, **case.get("lane", {}))
    except cb.Error as e:
        return [refused(e)]
    with client:
        run = Run(client)
        for step in case["do"]:
            run.step(step)
        return [run.finish(i) for i in range(len(run.sequences))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wake", default="socket")
    parser.add_argument("cases", type=Path)
    parser.add_argument("group")
    parser.add_argument("instance")
    options = parser.parse_args()

    for case in json.loads(options.cases.read_text())[options.group]["cases"]:
        outcomes = run_case(case, options.instance, options.wake)
        print(json.dumps({"name": case["name"], "outcomes": outcomes}, sort_keys=True,
                         separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
