#!/usr/bin/env python3
"""draw.py SEED: prints a file of cases: requests with all sorts of wishes together, some with a
fault. Nothing is expected of them but that all clients give the same answers."""

import json
import random
import sys

N_CASES, N_VOCAB, N_CONTEXT = 40, 49152, 2048
FAULTS = ({"top_p": 0}, {"top_k": -7}, {"temperature": -1}, {"min_p": 2}, {"typical_p": 0},
          {"repetition_penalty": -1}, {"presence_penalty": 2000}, {"frequency_penalty": -2000},
          {"stop_ids": [N_VOCAB]}, {"stop_ids": {"n": 70}}, {"stops": ["a"] * 20}, {"ids": []},
          {"first_id": N_VOCAB + 5}, {"max_new_tokens": N_CONTEXT}, {"top_logprobs": 25},
          {"biases": [[3, 1], [3, 2]]}, {"allowed_ids": []},
          {"allowed_ids": [8], "banned_ids": [8]})


def ids(draw, most):
    return [draw.randrange(N_VOCAB) for _ in range(draw.randint(1, most))]


def request(draw):
    """Each wish is there now and then."""
    wishes = {"ids": ids(draw, 60), "max_new_tokens": draw.choice((0, 1, 5, 30, 100)),
              "user": draw.randrange(1 << 53)}
    if draw.random() < 0.7:
        wishes |= {"temperature": draw.uniform(0.01, 3), "seed": draw.randrange(1 << 62)}
        if draw.random() < 0.2:
            wishes |= {"n": draw.randint(2, 4), "child_idx": draw.randrange(1000)}
    may_be = {
        "top_p": draw.uniform(0.01, 1), "top_k": draw.randrange(60000),
        "min_p": draw.random(), "typical_p": draw.uniform(0.01, 1),
        "repetition_penalty": draw.uniform(0.5, 2), "presence_penalty": draw.uniform(-2, 2),
        "frequency_penalty": draw.uniform(-2, 2), "no_repeat_ngram": draw.randint(1, 9),
        "min_new_tokens": draw.randint(1, 20), "first_id": draw.randrange(N_VOCAB),
        "allowed_ids": ids(draw, 400), "banned_ids": ids(draw, 400),
        "biases": [[id, draw.uniform(-9, 9)] for id in set(ids(draw, 100))],
        "stop_ids": ids(draw, 64),
        "stops": draw.sample(["bo", "zi", "e l", "fa go", "jovi", "d"], 2),
        "cache_salt": "salt" * draw.randint(1, 16), "priority": draw.randrange(256),
        "on_new_weights": draw.randrange(4), "final_only": True, "ignore_eos": True,
        "times": True, "epochs": True, "logprobs": True, "top_logprobs": draw.randint(1, 20),
        "prompt_logprobs": True, "raw_logprobs": True, "deadline_ms": 600000}
    wishes |= {key: value for key, value in may_be.items() if draw.random() < 0.2}
    if draw.random() < 0.1:
        wishes = wishes | {"n": 1} | draw.choice(FAULTS)
    return wishes


def case(draw, i):
    steps = [{"submit": request(draw)} for _ in range(draw.randint(1, 10))]
    return {"name": f"drawn {i}", "lane": {"n_slots": 64}, "do": steps}


def main():
    draw = random.Random(int(sys.argv[1]))
    settings = ["--model", "null", "--null_context", str(N_CONTEXT)]
    cases = [case(draw, i) for i in range(N_CASES)]
    print(json.dumps({"drawn": {"settings": settings, "cases": cases}}))


if __name__ == "__main__":
    main()
