#!/bin/sh
# run.sh BUILD: what `make bench` prints: this machine's limits and the operators' share of them; what the
# library's calls cost; the transport and the engine without arithmetic; then the real model at 1, 8 and 32
# requests. Nothing is judged: figures are for reading side by side, on a quiet machine.
set -u
build=$1
model=${CBD_MODEL:-build/models/SmolLM2-135M-Instruct.Q4_1.gguf}
run=$(mktemp -d)
export CBD_RUNTIME_DIR="$run"
daemon=

stop() {
    [ -n "$daemon" ] && kill -TERM "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    daemon=
}
trap 'stop; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM

start() { # OPTION...
    rm -f "$run/out"
    mkfifo "$run/out"
    began=$(date +%s%N)
    "$build/cbd" "$@" >"$run/out" 2>"$run/log" &
    daemon=$!
    grep -q -m 1 '^ready$' "$run/out" || { cat "$run/log" >&2; exit 1; }
    echo "start to ready: $((($(date +%s%N) - began) / 1000000)) ms"
}

echo "== kernels"
"$build/tests/bench_kernels"
echo "== engine, 32 requests: its own time a step"
"$build/tests/bench_engine"
echo "== calls of the library, null model"
start --model null
"$build/tests/bench_client"
echo "== null model, 32 requests"
"$build/cbctl" bench --requests 32 --prompt-tokens 128 --new-tokens 64 --repeats 5
"$build/cbctl" bench --requests 32 --prompt-tokens 128 --new-tokens 64 --repeats 5 --processes 4
stop
echo "== $(basename "$model")"
start --model "$model"
for n in 1 8 32; do
    "$build/cbctl" bench --requests $n --prompt-tokens 128 --new-tokens 64 --repeats 3
done
awk '/^VmRSS/ { printf "resident: %.0f MiB\n", $2 / 1024 }' "/proc/$daemon/status"
stop
echo "== four clients beside companions that die"
"$(dirname "$0")/harm.sh" "$build"
