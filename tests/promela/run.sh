#!/bin/sh
# run.sh [-s] [MODEL.pml...]: has spin check every run that a model names at its top, completely, and expects each
# mutant that it names to violate something. -s: the first run of each, no mutants. Prints states and seconds;
# exit status 0: all as it must be.
set -u
cd "$(dirname "$0")" || exit 2
short=0
[ "${1-}" = -s ] && short=1 && shift
[ $# -gt 0 ] || set -- *.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
command -v spin >/dev/null || { echo "spin is not installed: make deps"; exit 2; }
bad=0 n_runs=0 n_mutants=0
# check MODEL FLAGS: sets `errors`, `states`, `seconds`, `depth`.
check() {
    rm -f "$work"/pan* "$work"/*.trail
    begin=$(date +%s%N)
    cp tso.promela "$1" "$work/"
    # shellcheck disable=SC2086
    (cd "$work" && spin $2 -a "$1" >spin.log 2>&1 &&
        ${CC:-cc} -O1 -w -DSAFETY -DCOLLAPSE -DVECTORSZ=2048 -DMEMLIM=4096 -o pan pan.c &&
        ./pan -m2000000 >pan.log 2>&1)
    seconds=$(($(date +%s%N) / 10000000 - begin / 10000000))
    seconds=$((seconds / 100)).$(printf %02d $((seconds % 100)))
    errors=$(sed -n 's/.*errors: \([0-9]*\)$/\1/p' "$work/pan.log" 2>/dev/null)
    states=$(sed -n 's/ *\([0-9e+.]*\) states, stored.*/\1/p' "$work/pan.log" 2>/dev/null)
    what=$(sed -n 's/^pan:[0-9]*: \(.*\) (at depth.*/\1/p' "$work/pan.log" 2>/dev/null | head -n 1)
    if [ -z "$errors" ] || grep -q 'max search depth too small\|out of memory\|aborted' "$work/pan.log"; then
        [ "${errors:-0}" != 0 ] || errors=incomplete
    fi
}
for model in "$@"; do
    model=$(basename "$model")
    sed -n 's/^ \* run: *\(.*\)$/\1/p' "$model" >"$work/runs"
    holds=1
    while read -r flags; do
        n_runs=$((n_runs + 1))
        check "$model" "$flags"
        printf '%-10s %-34s %10s states %7s s  %s\n' "$model" "$flags" "${states:-no}" "$seconds" \
            "$([ "$errors" = 0 ] && echo holds || echo "FAILS: ${what:-$errors}")"
        if [ "$errors" != 0 ]; then
            bad=$((bad + 1)) holds=0
            tail -n 5 "$work/spin.log"
            (cd "$work" && [ -f "$model.trail" ] && spin $flags -t -p "$model" | tail -n 60)
        fi
        [ "$short" = 0 ] || break
    done <"$work/runs"
    [ "$short$holds" = 01 ] || continue
    sed -n 's/^ \* mutant: *\(.*\)$/\1/p' "$model" >"$work/mutants"
    while read -r line; do
        flags=$(printf '%s\n' "$line" | sed 's/   .*//')
        text=$(printf '%s\n' "$line" | sed 's/.*   *//')
        n_mutants=$((n_mutants + 1))
        check "$model" "$flags"
        case $errors in
        '' | 0 | incomplete)
            echo "SURVIVED: $model $text ($flags)"
            bad=$((bad + 1))
            ;;
        *) echo "caught: $model $text ($what)" ;;
        esac
    done <"$work/mutants"
done
echo "promela: $n_runs runs, $n_mutants mutants, $bad not as they must be"
[ "$bad" -eq 0 ]
