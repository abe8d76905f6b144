#!/bin/sh
# timing.sh BUILD SAMPLES: a daemon that anybody may connect to, and build/tests/timing against it.
set -u
run=$(mktemp -d)
chmod 755 "$run"
export CBD_RUNTIME_DIR="$run"
mkfifo "$run/out"
"$1/cbd" --model null --null_step_us 200 --max_batch_tokens 32 --page_size 16 --num_blocks 65536 \
    --socket_mode 0666 --socket_trust true --log_level warning >"$run/out" &
daemon=$!
trap 'kill "$daemon" 2>/dev/null; wait "$daemon" 2>/dev/null; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM
grep -q -m 1 '^ready$' "$run/out" || exit 2
"$1/tests/timing" "$2"
