#!/bin/sh
# run.sh BUILD: what `make bench` prints: this machine's limits and the operators' share of them; what drawing
# tokens costs; the engine without arithmetic; round trips between processes; what the library's calls cost; the
# transport; then the real model through a real daemon, by the number of requests and by the length of their
# context, also while a daemon is replaced; and what clients that die cost the others. Tables for reading side by
# side on a quiet machine, the same as CSV in BUILD/bench. Nothing is judged.
#
# BENCH_QUICK=1: fewer points, once each. BENCH_REPEATS: how often each is measured (3). Repeats take turns, so
# that a slow moment of the machine spoils no single point.
set -u
build=$1
here=$(dirname "$0")
csv=$build/bench
model=${CBD_MODEL:-build/models/SmolLM2-135M-Instruct.Q4_1.gguf}
if [ "${BENCH_QUICK:-0}" = 0 ]; then
    repeats=${BENCH_REPEATS:-3} runs=9 deaths=5 counts="1 2 4 8 16 32 64"
    contexts="1:1024 1:4096 1:8192 8:1024 8:4096 8:8192"
else
    repeats=${BENCH_REPEATS:-1} runs=3 deaths=1 counts="1 8 32" contexts="1:1024 8:1024"
fi
new=64 # tokens of a request
run=$(mktemp -d)
export CBD_RUNTIME_DIR="$run"
daemon=

stop() {
    [ -n "$daemon" ] && kill -TERM "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null
    daemon=
}
trap 'stop; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$csv" || exit 1

start() { # OPTION...
    rm -f "$run/out"
    mkfifo "$run/out"
    began=$(date +%s%N)
    "$build/cbd" "$@" >"$run/out" 2>"$run/log" &
    daemon=$!
    grep -q -m 1 '^ready$' "$run/out" || { cat "$run/log" >&2; exit 1; }
    echo "start to ready: $((($(date +%s%N) - began) / 1000000)) ms"
}

# KEY of the JSON object on standard input.
figure() {
    sed "s/.*\"$1\": *\([0-9.]*\).*/\1/"
}

# What the daemon's loop has taken itself so far, in ns, and its steps.
own() {
    "$build/cbctl" status --json >"$run/status" && figure own_ns <"$run/status" && figure steps <"$run/status"
}

# A CSV file as columns, numbers to the right.
table() {
    awk -F, '{ for (i = 1; i <= NF; i++) { c[NR, i] = $i; if (length($i) > w[i]) w[i] = length($i) } n = NF }
        END { for (r = 1; r <= NR; r++) { for (i = 1; i <= n; i++) printf "%*s  ", w[i], c[r, i]; print "" } }' "$1"
}

echo "== kernels"
"$build/tests/bench_kernels" -r $runs -o "$csv" || exit 1
echo "== drawing tokens: microseconds for all rows, on two threads"
"$build/tests/bench_sample" >"$csv/sample.csv" || exit 1
table "$csv/sample.csv"
echo "== engine, 32 requests: its own time a step"
"$build/tests/bench_engine" >"$csv/engine.csv" || exit 1
table "$csv/engine.csv"
echo "== round trips between two processes (make bench-ipc: for longer, and beside others)"
"$build/tests/bench_ipc" -bq "$build"
echo "== calls of the library, null model"
start --model null
"$build/tests/bench_client" >"$csv/calls.csv" || exit 1
table "$csv/calls.csv"
echo "== null model, 32 requests"
"$build/cbctl" bench --requests 32 --prompt-tokens 128 --new-tokens 64 --repeats 5 || exit 1
"$build/cbctl" bench --requests 32 --prompt-tokens 128 --new-tokens 64 --repeats 5 --processes 4 || exit 1
stop

echo "== $(basename "$model"), prompts of 128 tokens, $new new ones; own: the loop's own part of a step, microseconds"
start --model "$model"
"$build/cbctl" bench --requests 8 --prompt-tokens 128 --new-tokens 2 >"$run/warm" || exit 1
sleep 4 # the cache gets its memory in idle time, or else within steps
echo "requests,prefill_tok_s,decode_tok_s,own" >"$run/requests"
for _ in $(seq "$repeats"); do
    for n in $counts; do
        before=$(own) || exit 1
        "$build/cbctl" bench --requests "$n" --prompt-tokens 128 --new-tokens $new --json >"$run/json" || exit 1
        own_us=$({ echo "$before"; own; } | awk '{ v[NR] = $1 } END { printf "%.1f", (v[3] - v[1]) / (v[4] - v[2]) / 1000 }')
        echo "$n,$(figure prefill_tok_s <"$run/json"),$(figure decode_tok_s <"$run/json"),$own_us" >>"$run/requests"
    done
done
awk -v keys=1 -f "$here/spread.awk" "$run/requests" >"$csv/requests.csv"
table "$csv/requests.csv"
awk '/^VmRSS/ { printf "resident: %.0f MiB\n", $2 / 1024 }' "/proc/$daemon/status"
stop

# Long prompts are prefilled first, in whole steps, so that all requests then decode together. Decode's spread
# is that of the steps.
echo "== contexts: requests with a prompt that fills them but for $new tokens, once each"
start --model "$model" --scheduler prefill_first --step_ms_max 0
echo "requests,prompt_tokens,new_tokens,prefill_tok_s,decode_tok_s,decode_tok_s_p10,decode_tok_s_p90" >"$csv/contexts.csv"
for context in $contexts; do
    "$build/tests/bench_context" "${context%:*}" $((${context#*:} - new)) $new >>"$csv/contexts.csv" || exit 1
done
table "$csv/contexts.csv"
stop
echo "== eight requests that decode beside a prompt: milliseconds between tokens"
start --model "$model"
echo "prompt_tokens,median_before,median_beside,p90,longest,prefill_s" >"$csv/gaps.csv"
"$build/tests/bench_gap" $((${contexts##*:} - new)) >>"$csv/gaps.csv" || exit 1
table "$csv/gaps.csv"
stop
echo "== requests that go on at the next daemon: milliseconds between tokens through cbctl upgrade"
echo "requests,prompt_tokens,median_before,longest_while_it_loads,longest,prefill_of_all" >"$csv/upgrades.csv"
for n in 1 8; do
    start --model "$model"
    "$build/tests/bench_upgrade" "$build/cbctl" $n 1000 >>"$csv/upgrades.csv" || exit 1
    wait "$daemon"
    daemon=$("$build/cbctl" status --json | figure pid) # nobody's child
    kill -TERM "$daemon"
    while kill -0 "$daemon" 2>/dev/null; do sleep 0.1; done
    daemon=
done
table "$csv/upgrades.csv"
echo "== four clients beside companions that die"
"$here/harm.sh" "$build" $deaths
echo "CSV: $csv"
