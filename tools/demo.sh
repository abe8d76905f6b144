#!/bin/sh
# demo.sh BUILD: one daemon with a real model, four client processes at once, their answers as they come,
# then the figures. Needs what `make all` built and the model that CBD_MODEL names.
set -u
build=$1
run=$(mktemp -d)
export CBD_RUNTIME_DIR="$run"
daemon=

finish() {
    if [ -n "$daemon" ]; then
        kill -TERM "$daemon" 2>/dev/null
        wait "$daemon" 2>/dev/null
    fi
    rm -rf "$run"
}
trap finish EXIT
trap 'exit 130' INT TERM

echo "== one daemon: $build/cbd --model $(basename "$CBD_MODEL")"
mkfifo "$run/out"
"$build/cbd" --model "$CBD_MODEL" >"$run/out" 2>"$run/log" &
daemon=$!
if ! grep -q -m 1 '^ready$' "$run/out"; then
    echo "demo: cbd did not start:" >&2
    cat "$run/log" >&2
    exit 1
fi

echo "== four programs ask it at once; each line is one program's answer as it comes"
ask() { # NUMBER QUESTION; its status is cbctl's
    mkfifo "$run/answer$1"
    while IFS= read -r line; do
        printf 'client %s %s\n' "$1" "$line"
    done <"$run/answer$1" &
    "$build/cbctl" run --chat -n 60 "$2" >"$run/answer$1"
    status=$?
    wait
    return $status
}
clients=
n=0
for question in \
    "What is the capital of France, and what is it known for?" \
    "Give me three tips for learning to play the guitar." \
    "Explain in two sentences why the sky is blue." \
    "Write a short poem about a lighthouse."; do
    n=$((n + 1))
    ask "$n" "$question" &
    clients="$clients $!"
done
failed=0
for c in $clients; do
    wait "$c" || failed=1
done

echo "== figures: 8 requests of 128 prompt tokens and 64 new ones"
"$build/cbctl" bench --requests 8 --prompt-tokens 128 --new-tokens 64 --processes 4 || failed=1
echo "== the daemon's view"
"$build/cbctl" status || failed=1
if [ "$failed" -ne 0 ]; then
    echo "demo: a client failed; the daemon said:" >&2
    cat "$run/log" >&2
    exit 1
fi
echo "== done; the daemon stops"
