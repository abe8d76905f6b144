"""OpenVINO GenAI's continuous batching: N prompts of P random tokens each, T new ones, greedy, no stop, no prefix
sharing. usage: openvino_batched.py MODEL P T N,N,...   prints a line "N prefill_tok_s decode_tok_s" for each N"""
import random
import sys
import time

import openvino_genai as genai


def pipeline(model):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2  # GB
    scheduler.max_num_batched_tokens = 2048
    scheduler.enable_prefix_caching = False
    scheduler.dynamic_split_fuse = True
    return genai.LLMPipeline(model, "CPU", scheduler_config=scheduler)


def seconds(pipe, prompts, n_new):
    config = genai.GenerationConfig()
    config.max_new_tokens = n_new
    config.ignore_eos = True
    config.do_sample = False
    config.apply_chat_template = False
    start = time.perf_counter()
    pipe.generate(prompts, config)
    return time.perf_counter() - start


def main(model, n_prompt, n_new, counts):
    pipe = pipeline(model)
    tokenizer = pipe.get_tokenizer()
    rng = random.Random(0)
    for n in counts:
        prompts = [tokenizer.decode([rng.randrange(10, 40000) for _ in range(n_prompt)]) for _ in range(n)]
        # Text of random tokens is cut a little differently when it is read back: the true count is asked for.
        n_tokens = sum(tokenizer.encode(p).input_ids.shape[1] for p in prompts)
        seconds(pipe, prompts, n_new)  # warms up
        first = seconds(pipe, prompts, 1)
        all_ = seconds(pipe, prompts, n_new)
        print(n, n_tokens / first, n * (n_new - 1) / (all_ - first), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(n) for n in sys.argv[4].split(",")])
