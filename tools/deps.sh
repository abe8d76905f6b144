#!/bin/sh
# Installs the Debian packages of tools/deps.txt that are missing, after saying which.
set -eu
cd "$(dirname "$0")/.."
if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "deps: this is not a Debian system; install the equivalents of tools/deps.txt by hand" >&2
    exit 0
fi
missing=
for p in $(sed 's/#.*//' tools/deps.txt); do
    if ! dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed'; then
        missing="$missing $p"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi
echo "deps: will install these Debian packages:$missing"
sudo=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "deps: root rights are needed for apt-get, and sudo is not here; as root run: apt-get install$missing" >&2
        exit 1
    fi
    sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing
