#!/bin/sh
# mutants.sh OBJECT...: puts each fault of mutants.txt into a copy of its file, links that with the rest of the
# explorer's objects, and expects a case to fail. Exit status 0: every mutant was caught.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/mutants/plant.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
survived=0 n=0
libs='' LIBS=''
tab=$(printf '\t')
while IFS=$tab read -r file expression what; do
    case $file in '' | '#'*) continue ;; esac
    n=$((n + 1))
    flags=-DCB_MODEL
    case $file in client/*) flags="$flags -include tests/explore/system.h" ;; esac
    # shellcheck disable=SC2046
    if ! plant "$file" "$expression" "$work/explore" $(printf '%s\n' "$@" | grep -v "/${file%.c}\.o$"); then
        survived=$((survived + 1))
        continue
    fi
    timeout 1200 "$work/explore" --first >"$work/log" 2>&1
    rc=$?
    if [ "$rc" -eq 0 ] || [ "$rc" -eq 124 ]; then
        echo "SURVIVED: $what ($rc)"
        survived=$((survived + 1))
    else
        why=$(tail -n 1 "$work/log")
        echo "caught: $what (${why:-an assertion})"
    fi
done <tests/explore/mutants.txt
echo "source mutants: $n, $survived survived"
[ "$survived" -eq 0 ]
