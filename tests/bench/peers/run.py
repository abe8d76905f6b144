"""run.py BUILD MODEL [--readme FILE]: cbd and what else could serve this model here, in turn, and the ratios.

A round runs each system once, as a process of its own, for each number of requests; so a slow moment of the machine
falls on all of them, and only the ratios of the medians mean much elsewhere. Each does once, unmeasured, what is then
measured (llama.cpp, which touches its whole cache at start, one request of it). N requests with P prompt tokens each and
T new ones, greedy, no stop, no prefix sharing:

  prefill tok/s = N * P / time of the run with T = 1
  decode tok/s  = N * (T - 1) / (time with T - time with T = 1)

Settings, from the environment: PEERS_ROUNDS (5), PEERS_N ("1 8 32"), PEERS_MACHINE (how the caption calls this one).
Writes peers.csv (medians and spread), peers.md and peers.svg into BUILD/bench. With --readme, the table and the
caption replace what FILE has between its two marks, and the plot goes to tests/bench/figures/peers.svg.

Standard library only; the peers are asked for in the Python that runs this."""
import csv
import datetime
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import plot

HERE = pathlib.Path(__file__).resolve().parent
N_PROMPT, N_NEW = 128, 64
PHASES = ("prefill", "decode")
# name: (module, package on PyPI, script)
PEERS = {
    "OpenVINO GenAI": ("openvino_genai", "openvino-genai", "openvino_batched.py"),
    "llama.cpp": ("llama_cpp", "llama-cpp-python", "llamacpp_batched.py"),
}
MARKS = ("<!-- figures: written by `make figures` -->", "<!-- end of figures -->")
# SmolLM2-135M, Q4_1: weights that a prompt's token and a new token are multiplied with; bytes read a step.
SMOLLM2 = {"layers": 106.1e6, "all": 134.4e6, "bytes": 96.4e6}


class Cbd:
    """A daemon of its own for each round, as the peers are; ended whatever happens."""

    def __init__(self, build, model):
        self.build, self.model = build, model

    def bench(self, env, n, n_new):
        command = [self.build / "cbctl", "bench", "--json", "--requests", n, "--prompt-tokens", N_PROMPT, "--new-tokens", n_new]
        return json.loads(subprocess.check_output([str(c) for c in command], env=env))

    def round(self, counts):
        with tempfile.TemporaryDirectory() as folder:
            env = dict(os.environ, CBD_RUNTIME_DIR=folder)
            command = [str(self.build / "cbd"), "--model", self.model, "--log_level", "warning"]
            daemon = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
            try:
                if daemon.stdout.readline() != "ready\n":
                    sys.exit("cbd doesn't start")
                for n in counts:
                    self.bench(env, n, N_NEW)  # warms up: all N at once, so that the cache has its memory
                    figures = self.bench(env, n, N_NEW)
                    yield n, figures["prefill_tok_s"], figures["decode_tok_s"]
            finally:
                daemon.terminate()
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:  # it drains, and some request won't end
                    daemon.kill()
                    daemon.wait()


class Peer:
    def __init__(self, script, model, n_threads):
        self.script, self.model, self.n_threads = script, model, n_threads

    def round(self, counts):
        command = [sys.executable, HERE / self.script, self.model, N_PROMPT, N_NEW, ",".join(map(str, counts)), self.n_threads]
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{self.script}: {done.stderr[-2000:]}")
        for line in done.stdout.splitlines():
            n, prefill, decode = line.split()
            yield int(n), float(prefill), float(decode)


def installed():
    return {name: peer for name, peer in PEERS.items() if importlib.util.find_spec(peer[0])}


def limits_measure(build):
    """name: (the best seen, unit), and the number of threads."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "tests/bench_kernels", "-l", "-o", folder], check=True, stdout=subprocess.DEVNULL)
        rows = list(csv.DictReader(open(pathlib.Path(folder) / "limits.csv")))
    return {row["limit"]: float(row["max"]) for row in rows}, int(rows[0]["threads"])


def model_limits(model, limits, counts):
    """What the machine's limits leave of tokens a second; {} for a model whose weights were not counted."""
    if not pathlib.Path(model).name.startswith("SmolLM2-135M-Instruct.Q4_1"):
        return {}
    dot, read = limits["int8 dot"] * 1e9, limits["reads"] * 1e9
    decode = {n: min(n * read / SMOLLM2["bytes"], dot / 2 / SMOLLM2["all"]) for n in counts}
    return {"prefill": [(n, dot / 2 / SMOLLM2["layers"]) for n in counts], "decode": list(decode.items())}


def rounds_run(systems, counts, n_rounds):
    """samples[system, phase, n] = [tok/s of each round]"""
    samples = {}
    for i in range(n_rounds):
        for name, system in systems.items():
            print(f"round {i + 1} of {n_rounds}: {name}", flush=True)
            for n, *rates in system.round(counts):
                for phase, rate in zip(PHASES, rates):
                    samples.setdefault((name, phase, n), []).append(rate)
    return samples


def csv_write(path, samples):
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["system", "phase", "requests", "rounds", "median", "min", "max"])
        for (name, phase, n), v in samples.items():
            out.writerow([name, phase, n, len(v)] + [f"{x:.1f}" for x in (statistics.median(v), min(v), max(v))])


def table(systems, counts, samples, limits):
    """Markdown: of each system the median and its spread, then the ratios to the first system, then the limit."""
    columns = [(phase, n) for n in counts for phase in PHASES]
    rows = [["tok/s"] + [f"N={n} {phase}" for phase, n in columns]]
    rows.append(["---"] * len(rows[0]))
    for name in systems:
        cells = [samples[name, phase, n] for phase, n in columns]
        rows.append([name] + [f"{statistics.median(v):.0f} ({min(v):.0f}-{max(v):.0f})" for v in cells])
    first, *others = systems
    for name in others:
        ratio = [statistics.median(samples[first, *c]) / statistics.median(samples[name, *c]) for c in columns]
        rows.append([f"**{first} / {name}**"] + [f"**{r:.2f}**" for r in ratio])
    if limits:
        rows.append(["limit of the machine"] + [f"{dict(limits[phase])[n]:.0f}" for phase, n in columns])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def machine():
    if os.environ.get("PEERS_MACHINE"):
        return os.environ["PEERS_MACHINE"]
    info = dict(line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
    info = {key.strip(): value.strip() for key, value in info.items()}
    kind = ", virtual machine" if "hypervisor" in info.get("flags", "").split() else ""
    name = f"{info.get('model name', 'unknown processor')} (family {info.get('cpu family')}, model {info.get('model')})"
    return f"{name}, {os.cpu_count()} processors{kind}"


def caption(names, model, limits, n_rounds):
    packages = [PEERS[name][1] for name in names]
    versions = [f"{package} {importlib.metadata.version(package)}" for package in packages]
    return (f"{machine()}; {datetime.date.today()}; {pathlib.Path(model).stem}, prompts of {N_PROMPT} tokens, {N_NEW} new "
            f"ones, greedy; medians (least-most) of {n_rounds} rounds in turn with {', '.join(versions)}. The machine's "
            f"limits in that run: int8 dot products {limits['int8 dot']:.0f} GOPS, reads {limits['reads']:.1f} GB/s.")


def readme_write(path, text):
    old = path.read_text()
    if old.count(MARKS[0]) != 1 or old.count(MARKS[1]) != 1:
        sys.exit(f"{path} lacks its marks")
    head, rest = old.split(MARKS[0])
    path.write_text(head + MARKS[0] + "\n\n" + text + "\n" + MARKS[1] + rest.split(MARKS[1])[1])


def main(build, model, readme):
    peers = installed()
    if not peers:
        packages = " ".join(package for _, package, _ in PEERS.values())
        sys.exit(f"no peer to compare with in {sys.executable}.\n"
                 f"Install one or both:  python3 -m venv DIR && DIR/bin/pip install numpy {packages}\n"
                 f"then:                 make bench-peers PEERS_PYTHON=DIR/bin/python")
    counts = sorted(int(n) for n in os.environ.get("PEERS_N", "1 8 32").split())
    n_rounds = int(os.environ.get("PEERS_ROUNDS", "5"))
    limits, n_threads = limits_measure(build)
    systems = {"cbd": Cbd(build, model)}
    systems.update((name, Peer(script, model, n_threads)) for name, (_, _, script) in peers.items())
    samples = rounds_run(systems, counts, n_rounds)

    figures = {phase: {name: [] for name in systems} for phase in PHASES}
    for (name, phase, n), v in samples.items():
        figures[phase][name].append((n, statistics.median(v), min(v), max(v)))
    bounds = model_limits(model, limits, counts)
    text = table(list(systems), counts, samples, bounds)
    about = caption(peers, model, limits, n_rounds)
    notes = [f"{machine()}; {datetime.date.today()}",
             f"{pathlib.Path(model).stem}; medians of {n_rounds} rounds in turn, with least and most; both axes are logarithmic"]
    out = build / "bench"
    out.mkdir(exist_ok=True)
    csv_write(out / "peers.csv", samples)
    (out / "peers.md").write_text(text)
    (out / "peers.svg").write_text(plot.svg(list(systems), counts, figures, bounds, notes))
    print(f"\n{text}\n{about}\nWritten: {out}/peers.csv, peers.md, peers.svg")
    if readme:
        (HERE.parent / "figures").mkdir(exist_ok=True)
        shutil.copyfile(out / "peers.svg", HERE.parent / "figures/peers.svg")
        link = "![tokens a second over the number of requests](tests/bench/figures/peers.svg)"
        readme_write(pathlib.Path(readme), f"{link}\n\n{text}\n{about}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[4] if sys.argv[3:4] == ["--readme"] else None)
