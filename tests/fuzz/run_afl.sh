#!/bin/sh
# run_afl.sh SECONDS PROGRAM...: AFL++ on each target for that long, from the tree's seeds and what earlier runs of
# libFuzzer and of this found. What it keeps is in build/afl/<target>; a crash or a hang is a finding.
set -u
seconds=$1
shift
failed=0
command -v afl-fuzz >/dev/null 2>&1 || { echo "fuzz-afl: AFL++ is not installed (Debian: afl++)" >&2; exit 1; }
# No terminal to draw on; a machine that is shared, and takes its core dumps elsewhere, will do.
export AFL_NO_UI=1 AFL_NO_AFFINITY=1 AFL_SKIP_CPUFREQ=1 AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES=1 AFL_AUTORESUME=0
for p in "$@"; do
    name=$(basename "$p")
    target=${name#fuzz_}
    out=$(dirname "$p")/$target
    seeds=$out.seeds
    mkdir -p "$seeds" "$out"
    cp tests/fuzz/corpus/"$target"/* "$seeds"/
    # What AFL++ found before: its queue, under names of its own.
    for kept in "$out"/default/queue/id:*; do
        [ -f "$kept" ] && cp "$kept" "$seeds/$(cksum <"$kept" | tr -d ' ')"
    done
    rm -rf "$out"
    printf '== %s under AFL++ for %s s\n' "$name" "$seconds"
    if ! afl-fuzz -i "$seeds" -o "$out" -m none -t 10000 -V "$seconds" -- "$p" >"$p.log" 2>&1; then
        failed=$((failed + 1))
        tail -n 40 "$p.log"
        continue
    fi
    grep -E '^(execs_done|corpus_count|saved_crashes|saved_hangs|stability) ' "$out/default/fuzzer_stats"
    found=$(find "$out/default/crashes" "$out/default/hangs" -name 'id:*' | wc -l)
    if [ "$found" -gt 0 ]; then
        failed=$((failed + 1))
        find "$out/default/crashes" "$out/default/hangs" -name 'id:*'
    fi
done
printf 'fuzz-afl: %s targets, %s with findings\n' "$#" "$failed"
[ "$failed" -eq 0 ]
