#!/bin/sh
# suite.sh LIST BUILD OBJ FOLDER FILTER...: puts each fault of LIST into a copy of its file, links that into the
# suite of tests/FOLDER and expects one of the tests named by FILTER to fail. Exit status 0: all were caught.
set -u
cd "$(dirname "$0")/../.." || exit 2
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
    sed "$expression" "$file" >"$work/mutant.c"
    if cmp -s "$file" "$work/mutant.c"; then
        echo "does not apply: $file: $what"
        survived=$((survived + 1))
        continue
    fi
    # shellcheck disable=SC2086
    if ! ${CC:-gcc} -std=c17 -D_GNU_SOURCE -I. -O1 -w -c "$work/mutant.c" -o "$work/mutant.o" ||
        ! ${CC:-gcc} -o "$work/suite" $objects "$work/mutant.o" -Wl,--start-group $libs -Wl,--end-group \
            -luring -lseccomp -ljansson -lpcre2-8 -lutf8proc -lxxhash -linih -lm -pthread -lcriterion; then
        echo "does not build: $what"
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
