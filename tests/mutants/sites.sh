#!/bin/sh
# sites.sh EXPLORE: every order that is not relaxed, and every fence, in shm/, client/ and daemon/ has a mutant: the
# explorer runs its line, and so weakens it, or orders.txt says why it has none. Exit status 0: none is without.
set -u
explore=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
"$explore" --sites | sort >"$work/run" || exit 1
# An atomic operation that spells no order is sequentially consistent.
grep -nE 'CB_ACQUIRE|CB_RELEASE|cb_fence\(\)|memory_order_(acquire|release|acq_rel|seq_cst|consume)|atomic_(load|store|exchange|fetch_[a-z]+|compare_exchange_[a-z]+)\(' \
    shm/*.[ch] client/*.[ch] client/text/*.[ch] daemon/*.[ch] | grep -v '^shm/atomics\.h:' |
    grep -vE '^[^:]*:[0-9]*: *(/\*|\*)' >"$work/sites"
n=0 bad=0
while IFS=: read -r file line text; do
    n=$((n + 1))
    grep -qx "$file:$line" "$work/run" && continue
    if awk -F '\t' -v file="$file" -v text="$text" '$1 == file && index(text, $2) { found = 1 } END { exit !found }' \
        tests/mutants/orders.txt; then
        continue
    fi
    echo "no mutant: $file:$line:$text"
    bad=$((bad + 1))
done <"$work/sites"
# What orders.txt names is there.
tab=$(printf '\t')
while IFS=$tab read -r file text _; do
    case $file in '' | '#'*) continue ;; esac
    if ! grep -qF -- "$text" "$file"; then
        echo "orders.txt: $file has no $text"
        bad=$((bad + 1))
    fi
done <tests/mutants/orders.txt
echo "orders and fences: $n, of which $(wc -l <"$work/run") are explored; $bad without a mutant"
[ "$bad" -eq 0 ]
