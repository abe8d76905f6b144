# shellcheck shell=sh
# plant.sh, to be sourced: puts a fault into a copy of a file, and links that into a program in its place.

# plant FILE EXPRESSION PROGRAM OBJECT...: PROGRAM is the objects with FILE's mutant before the libraries of $libs.
# Works in $work, compiles with $flags, if set; the libraries of the system are those of LIBS, which make passes. Else
# says why not.
plant() {
    file=$1 expression=$2 program=$3
    shift 3
    sed "$expression" "$file" >"$work/mutant.c"
    if cmp -s "$file" "$work/mutant.c"; then
        echo "does not apply: $file: $expression"
        return 1
    fi
    # shellcheck disable=SC2086
    if ! ${CC:-gcc} -std=c17 -D_GNU_SOURCE -I. -O1 -w ${flags:-} -c "$work/mutant.c" -o "$work/mutant.o" ||
        ! ${CC:-gcc} -o "$program" "$@" "$work/mutant.o" -Wl,--start-group $libs -Wl,--end-group $LIBS; then
        echo "does not build: $file: $expression"
        return 1
    fi
}
