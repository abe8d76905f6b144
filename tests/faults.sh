#!/bin/sh
# faults.sh: every test that faults.txt, edge-cases.txt and names.txt name exists, and their rows are numbered upwards.
cd "$(dirname "$0")/.." || exit 1
status=0
known=$(grep -rhoE '^Test\([a-z_0-9]+, *[a-z_0-9]+' tests --include='*.c' | sed 's/^Test(//; s/, */\//')
for table in tests/faults.txt tests/edge-cases.txt tests/names.txt; do
    last=0
    while IFS='|' read -r number what tests; do
        case $number in '#'* | '') continue ;; esac
        number=${number% }
        [ "$number" -gt "$last" ] || { echo "$table: $number stands after $last" >&2; status=1; }
        last=$number
        case $tests in ' - '*) continue ;; esac
        [ -n "$what" ] && [ -n "$tests" ] || { echo "$table: $number has no test" >&2; status=1; }
        for test in $tests; do
            echo "$known" | grep -qxF "$test" || { echo "$table: $number: no test $test" >&2; status=1; }
        done
    done <$table
done
exit $status
