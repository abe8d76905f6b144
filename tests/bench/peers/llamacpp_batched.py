"""llama.cpp in process: one batch of N sequences, prefill, then greedy decode in lock step. No stop, no prefix
sharing. usage: llamacpp_batched.py MODEL P T N,N,... THREADS   prints a line "N prefill_tok_s decode_tok_s" for each N"""
import ctypes
import random
import sys
import time

import llama_cpp as llama
import numpy

BATCH = 2048


@llama.llama_log_callback
def quiet(_level, _text, _user):
    pass


class Batch:
    def __init__(self, context, n_vocab):
        self.context, self.n_vocab = context, n_vocab
        self.batch = llama.llama_batch_init(BATCH, 0, 1)
        self.n = 0
        self.last = {}  # sequence: the row of its logits

    def add(self, token, position, sequence, last):
        b, i = self.batch, self.n
        b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, last
        b.seq_id[i][0] = sequence
        if last:
            self.last[sequence] = i
        self.n += 1

    def run(self, chosen):
        """Decodes what was added; chosen[sequence] becomes its most likely next token."""
        self.batch.n_tokens = self.n
        if llama.llama_decode(self.context, self.batch):
            sys.exit("llama_decode failed")
        for sequence, i in self.last.items():
            row = llama.llama_get_logits_ith(self.context, i)
            chosen[sequence] = int(numpy.ctypeslib.as_array(row, (self.n_vocab,)).argmax())
        self.n, self.last = 0, {}


def prefill(batch, prompts, chosen):
    for sequence, prompt in enumerate(prompts):
        if batch.n + len(prompt) > BATCH:
            batch.run(chosen)
        for position, token in enumerate(prompt):
            batch.add(token, position, sequence, position == len(prompt) - 1)
    batch.run(chosen)


def decode(batch, n, position, n_steps, chosen):
    for step in range(n_steps):
        for sequence in range(n):
            batch.add(chosen[sequence], position + step, sequence, True)
        batch.run(chosen)


def measure(model, n_prompt, n_new, n, n_threads):
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    params = llama.llama_context_default_params()
    params.n_ctx = max(512, n * (n_prompt + n_new + 8))
    params.n_batch, params.n_ubatch, params.n_seq_max = BATCH, 512, n
    params.n_threads = params.n_threads_batch = n_threads
    if hasattr(params, "kv_unified"):
        params.kv_unified = False
    context = llama.llama_init_from_model(model, params)
    batch = Batch(context, n_vocab)
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 40000) for _ in range(n_prompt)] for _ in range(n)]
    chosen = [0] * n
    prefill(batch, prompts[:1], chosen)  # warms up
    decode(batch, 1, n_prompt, 1, chosen)
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    start = time.perf_counter()
    prefill(batch, prompts, chosen)
    middle = time.perf_counter()
    decode(batch, n, n_prompt, n_new - 1, chosen)
    end = time.perf_counter()
    print(n, n * n_prompt / (middle - start), n * (n_new - 1) / (end - middle), flush=True)
    llama.llama_batch_free(batch.batch)
    llama.llama_free(context)


def main(path, n_prompt, n_new, counts, n_threads):
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    if not model:
        sys.exit(path + " can't be loaded")
    for n in counts:
        measure(model, n_prompt, n_new, n, n_threads)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(n) for n in sys.argv[4].split(",")], int(sys.argv[5]))
