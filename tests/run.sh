#!/bin/sh
# run.sh BUILD PROGRAM|FILE.json...: runs Criterion programs, and replays recorded cases, one after another, and
# closes with one line of sums.
set -u
build=$1
shift
passed=0 failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT INT TERM
for p in "$@"; do
    printf '== %s\n' "$(basename "$p")"
    case $p in
    *.json) "$build/tests/replay" "$p" ;;
    *) CBD_BUILD=$build "$p" --jobs 2 ;;
    esac >"$log" 2>&1
    rc=$?
    # Of what went well the end will do; what did not may be anywhere.
    if [ "$rc" -eq 0 ]; then
        grep -a -v -e '^$' "$log" | tail -n 60
    else
        cat "$log"
    fi
    line=$(grep -a 'Synthesis' "$log" | tail -n 1 | sed 's/\x1b\[[0-9;]*m//g')
    ok=$(printf '%s' "$line" | sed -n 's/.*Passing: *\([0-9]*\).*/\1/p')
    bad=$(printf '%s' "$line" | sed -n 's/.*Failing: *\([0-9]*\).*/\1/p')
    crash=$(printf '%s' "$line" | sed -n 's/.*Crashing: *\([0-9]*\).*/\1/p')
    case $p in *.json)
        ok=$(sed -n 's/^\([0-9]*\) passed, [0-9]* failed$/\1/p' "$log")
        bad=$(sed -n 's/^[0-9]* passed, \([0-9]*\) failed$/\1/p' "$log") ;;
    esac
    passed=$((passed + ${ok:-0}))
    bad=$((${bad:-0} + ${crash:-0}))
    # A sanitizer may speak after the test has told its outcome: of leaks it does so at exit.
    reports=$(grep -acE '(ERROR|WARNING): [A-Za-z]+Sanitizer|: runtime error:' "$log")
    if [ "$bad" -eq 0 ]; then
        bad=$reports
    fi
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    failed=$((failed + bad))
done
# A test that fails or is killed takes its daemon with it, whose STATUS page stays: nobody holds its
# lock. Young ones may belong to another run's test, which looks at just that.
find /dev/shm -maxdepth 1 -user "$(id -u)" -name 'cbd.*' -mmin +1 -exec flock -n {} rm -f {} \; 2>/dev/null
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
