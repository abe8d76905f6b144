#!/bin/sh
# suite.sh LIST BUILD OBJ FOLDER FILTER...: puts each fault of LIST into a copy of its file, links that into the
# suite of tests/FOLDER and expects one of the tests named by FILTER to fail. Exit status 0: all were caught.
set -u
cd "$(dirname "$0")/../.." || exit 2
. tests/mutants/plant.sh
list=$1 build=$2 obj=$3 folder=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
survived=0 n=0
tab=$(printf '\t')
objects=$(find "$obj/tests/$folder" "$obj/tests/util" -name '*.o'; [ ! -f "$obj/tests/util.o" ] || echo "$obj/tests/util.o")
libs="$obj/libtools.a $obj/libdaemon.a $obj/libclientparts.a $obj/libkernels.a $obj/libshm.a"
# The tests that FILTER names, of a program.
passes() {
    for filter in $filters; do
        CBD_BUILD=$build timeout 120 "$1" --jobs 2 --filter "$filter" >"$work/log" 2>&1 || return 1
    done
}
filters=$*
if ! passes "$build/tests/test_$folder"; then
    echo "without a fault a test fails"
    tail -n 20 "$work/log"
    exit 1
fi
while IFS=$tab read -r file expression what; do
    case $file in '' | '#'*) continue ;; esac
    n=$((n + 1))
    # shellcheck disable=SC2086
    if ! plant "$file" "$expression" "$work/suite" $objects; then
        survived=$((survived + 1))
        continue
    fi
    if passes "$work/suite"; then
        echo "SURVIVED: $file: $what"
        survived=$((survived + 1))
    else
        echo "caught: $what ($(sed -n 's/^\[FAIL\] \([^:]*::[^:]*\):.*/\1/p' "$work/log" | head -n 1))"
    fi
done <"$list"
echo "$list: $n faults, $survived survived"
[ "$survived" -eq 0 ]
