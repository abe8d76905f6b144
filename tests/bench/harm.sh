#!/bin/sh
# harm.sh BUILD: what a dying client costs the others. Four clients are measured (the 99th percentile of the
# time between their tokens) while four companions come and go in mid-stream, over and over: by cancelling
# in one run, by kill -9 and SIGSTOP in the next; runs take turns. Prints both medians and their ratio.
set -u
build=$1
rounds=${2:-5}
model=${CBD_MODEL:-build/models/SmolLM2-135M-Instruct.Q4_1.gguf}
run=$(mktemp -d)
export CBD_RUNTIME_DIR="$run"
trap 'kill -TERM "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM

mkfifo "$run/out"
"$build/cbd" --model "$model" >"$run/out" 2>"$run/log" &
daemon=$!
grep -q -m 1 '^ready$' "$run/out" || { cat "$run/log" >&2; exit 1; }

# Four companions; while $run/go exists each is ended with this signal after a while, then replaced.
companions() { # SIGNAL
    while [ -e "$run/go" ]; do
        pids=
        for i in 1 2 3 4; do
            "$build/cbctl" run -n 2000 --ignore-eos "Tell me a long story, part $i" >/dev/null 2>&1 &
            pids="$pids $!"
        done
        sleep 0.7
        [ "$1" = KILL ] && kill -STOP "${pids##* }"
        sleep 0.2
        # shellcheck disable=SC2086
        kill "-$1" $pids 2>/dev/null
        # shellcheck disable=SC2086
        wait $pids 2>/dev/null
    done
}

for i in $(seq "$rounds"); do
    for signal in INT KILL; do
        touch "$run/go"
        companions $signal &
        companion=$!
        sleep 1
        "$build/cbctl" bench --requests 4 --processes 4 --prompt-tokens 64 --new-tokens 256 --json |
            sed 's/.*"itl_ms_p99": *\([0-9.]*\).*/\1/' >>"$run/$signal"
        rm -f "$run/go"
        wait $companion
    done
done
median() {
    sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
a=$(median "$run/INT") b=$(median "$run/KILL")
printf 'companions cancelled: itl_ms_p99 %s   killed and stopped: %s   ratio %s\n' "$a" "$b" \
    "$(awk "BEGIN { printf \"%.3f\", $b / $a }")"
"$build/cbctl" status --json | tr ',' '\n' | grep -E 'blocks_|lanes"|requests_active'
