#!/bin/sh
# mutants.sh BUILD OBJ MOST: puts each bug of mutants.txt into a copy of its file, links that into audit_storm and
# expects the engine's own audit to see it within 100 steps of one of the storms, without stopping anything.
# Exit status 0: up to MOST were missed.
set -u
cd "$(dirname "$0")/../.."
. tests/mutants/plant.sh
build=$1 obj=$2 most=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
libs="$obj/libdaemon.a $obj/libkernels.a $obj/libshm.a"
missed=0 n=0
tab=$(printf '\t')
if ! "$build/tests/audit_storm"; then
    echo "without a bug something is seen"
    exit 1
fi
while IFS=$tab read -r file expression what; do
    case $file in '' | '#'*) continue ;; esac
    n=$((n + 1))
    if ! plant "$file" "$expression" "$work/storm" "$obj/tests/programs/audit_storm.o"; then
        missed=$((missed + 1))
        continue
    fi
    timeout 120 "$work/storm" >"$work/log" 2>&1
    rc=$?
    if [ "$rc" -eq 1 ]; then
        echo "caught: $what ($(tail -n 1 "$work/log"))"
    else
        echo "MISSED: $what (exit $rc $(tail -n 1 "$work/log"))"
        missed=$((missed + 1))
    fi
done <tests/audit/mutants.txt
echo "$((n - missed)) of $n bugs caught"
[ "$missed" -le "$most" ]
