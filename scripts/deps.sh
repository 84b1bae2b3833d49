#!/usr/bin/env bash
# Installs what building, testing and linting need.  Does nothing where all of it is found already,
# by whatever means it came there.
set -euo pipefail

packages=(build-essential pkg-config libglib2.0-dev libjson-glib-dev libsqlite3-dev libopenblas-dev
    libaio-dev libopenmpi-dev openmpi-bin check gnuplot-nox clang-format shellcheck)
libraries=(glib-2.0 json-glib-1.0 sqlite3 openblas check)
headers=(libaio.h) # of libraries that pkg-config doesn't know
commands=(cc make pkg-config mpicc mpirun gnuplot clang-format shellcheck)

# Prints what is not found, a word each.
missing() {
    for command in "${commands[@]}"; do
        command -v "$command" >/dev/null || echo "$command"
    done
    for library in "${libraries[@]}"; do
        pkg-config --exists "$library" 2>/dev/null || echo "lib:$library"
    done
    for header in "${headers[@]}"; do
        echo "#include <$header>" | cc -E - >/dev/null 2>&1 || echo "$header"
    done
}

die() {
    echo "deps: $*" >&2
    exit 1
}

needed=$(missing | xargs)
[ -n "$needed" ] || exit 0
command -v apt-get >/dev/null || die "no apt-get here; install by other means: $needed"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "needs root, and there is no sudo: apt-get install ${packages[*]}"
    as_root=(sudo)
fi
apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600 "$@"
}

echo "deps: not found: $needed"
apt update || die "apt-get update failed"
apt install -y --no-install-recommends "${packages[@]}" || die "apt-get install failed"

needed=$(missing | xargs)
[ -z "$needed" ] || die "installed, but still not found: $needed"
