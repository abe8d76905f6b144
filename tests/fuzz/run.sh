#!/bin/sh
# run.sh SECONDS PROGRAM...: each libFuzzer target for that long, from its seeds and its kept corpus.
# tests/fuzz/corpus/<target> holds the seeds that are part of the tree; what a run finds goes to
# build/fuzz/corpus/<target> and is used again by the next.
set -u
seconds=$1
shift
failed=0
for p in "$@"; do
    name=$(basename "$p")
    kept=$(dirname "$p")/corpus/$name
    seeds=tests/fuzz/corpus/${name#fuzz_}
    mkdir -p "$kept"
    [ -d "$seeds" ] || seeds=
    printf '== %s for %s s\n' "$name" "$seconds"
    # shellcheck disable=SC2086
    if ! "$p" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$(dirname "$p")/" "$kept" $seeds >"$p.log" 2>&1; then
        failed=$((failed + 1))
        tail -n 40 "$p.log"
    fi
    grep -a -E 'stat::number_of_executed_units|stat::new_units_added' "$p.log" | sed 's/stat:://'
done
printf 'fuzz: %s targets, %s with findings\n' "$#" "$failed"
[ "$failed" -eq 0 ]
