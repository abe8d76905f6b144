#!/bin/sh
# install.sh install|uninstall DESTDIR PREFIX BUILD: the programs, the library, its header, the manual
# pages, the units of systemd and the user they want. DESTDIR is where a package is put together, and may be empty; PREFIX is where it will lie.
set -eu
action=$1 prefix=$2$3 build=$4
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
put 644 client/cbclient.h include
for page in shm/*.[1-8] client/*.[1-8] daemon/*.[1-8] tools/*.[1-8]; do
    put 644 "$page" "share/man/man${page##*.}"
done
put 644 tools/systemd/cbd@.socket lib/systemd/system
if [ "$action" = install ]; then
    ln -sf libcbclient.so "$prefix/lib/libcbclient.so.1"
    mkdir -p "$prefix/lib/pkgconfig"
    # Written now: only now is it certain which PREFIX it is.
    sed "s|@PREFIX@|$3|g" client/cbclient.pc.in >"$prefix/lib/pkgconfig/cbclient.pc"
    sed "s|@PREFIX@|$3|g" tools/systemd/cbd@.service.in >"$prefix/lib/systemd/system/cbd@.service"
    install -D -m 644 tools/systemd/sysusers.conf "$prefix/lib/sysusers.d/cbd.conf"
    chmod 644 "$prefix/lib/pkgconfig/cbclient.pc" "$prefix/lib/systemd/system/cbd@.service"
else
    rm -f "$prefix/lib/libcbclient.so.1" "$prefix/lib/pkgconfig/cbclient.pc" \
        "$prefix/lib/systemd/system/cbd@.service" "$prefix/lib/sysusers.d/cbd.conf"
fi
