#!/bin/sh
# install.sh install|uninstall PREFIX BUILD: the programs, the library, its header, the manual pages.
set -eu
action=$1 prefix=$2 build=$3
put() { # MODE FILE DIRECTORY
    if [ "$action" = install ]; then
        install -D -m "$1" "$2" "$prefix/$3/$(basename "$2")"
    else
        rm -f "$prefix/$3/$(basename "$2")"
    fi
}
put 755 "$build/cbd" sbin
put 755 "$build/cbctl" bin
put 755 "$build/libcbclient.so" lib
put 644 "$build/libcbclient.a" lib
put 644 "$build/cbclient.pc" lib/pkgconfig
put 644 client/cbclient.h include
for page in */*.[1-8]; do
    put 644 "$page" "share/man/man${page##*.}"
done
if [ "$action" = install ]; then
    ln -sf libcbclient.so "$prefix/lib/libcbclient.so.1"
else
    rm -f "$prefix/lib/libcbclient.so.1"
fi
