#!/bin/sh
# mutants.sh: applies each line of mutants.txt to a copy, builds the explorer there and expects it to find
# the fault. Exit status 0: every mutant was caught.
set -u
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
units="shm/arena.c shm/geometry.c shm/lane.c shm/lane_client.c shm/lane_deliver.c shm/ring.c"
survived=0 n=0
tab=$(printf '\t')
while IFS=$tab read -r file expression what; do
    case $file in '' | '#'*) continue ;; esac
    n=$((n + 1))
    rm -rf "$work/shm" "$work/tests"
    mkdir "$work/tests"
    cp -r shm "$work/"
    cp -r tests/explore "$work/tests/"
    sed -i "$expression" "$work/$file"
    if cmp -s "$file" "$work/$file"; then
        echo "mutant does not apply: $file: $expression"
        survived=$((survived + 1))
        continue
    fi
    # shellcheck disable=SC2086
    if ! (cd "$work" && ${CC:-cc} -std=c17 -D_GNU_SOURCE -DCB_MODEL -I. -O2 -w $units tests/explore/*.c \
        -o explore); then
        echo "mutant does not build: $what"
        survived=$((survived + 1))
        continue
    fi
    if timeout 300 "$work/explore" >"$work/log" 2>&1; then
        echo "SURVIVED: $what"
        survived=$((survived + 1))
    else
        why=$(sed -n 's/.* s  \(.*\)/\1/p' "$work/log" | grep -v '^holds$' | head -n 1)
        echo "caught: $what (${why:-an assertion, or no end})"
    fi
done <tests/explore/mutants.txt
echo "source mutants: $n, $survived survived"
[ "$survived" -eq 0 ]
