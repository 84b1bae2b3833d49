#!/usr/bin/env bash
# scripts/shown.sh FILE          what a document shows of fsdp-plan, as it prints it now
# scripts/shown.sh --check FILE  only says whether it is that
#
# Each block of FILE that begins with "$ fsdp-plan" is its commands, and below them what the last of
# them prints.  The programs are those of $BUILD.  How long a search took may differ.
set -euo pipefail

check=no
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
[ $# -eq 1 ] || {
    echo "usage: scripts/shown.sh [--check] FILE" >&2
    exit 2
}
file=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$(realpath "${BUILD:-build}")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
ln -s "$PWD/models" "$PWD/topologies" "$tmp" # build/asan is too deep to find them

# One that says that nothing fits ends with 1.
run_last() {
    local status=0
    (cd "$tmp" && PATH=$build:$PATH bash -c "$1") >"$tmp/printed" 2>"$tmp/said" || status=$?
    if [ "$status" -gt 1 ] || [ -s "$tmp/said" ]; then
        echo "scripts/shown.sh: $1: status $status: $(<"$tmp/said")" >&2
        exit 1
    fi
}

# fill <FILE: the document with its blocks filled.
fill() {
    local line where=text command=""
    while IFS= read -r line; do
        case $where in
        text) case $line in '```') where=start ;; '```'*) where=other ;; esac ;;
        start) [[ $line == "\$ fsdp-plan "* ]] && where="command" || where=other ;;
        other) [ "$line" != '```' ] || where=text ;;
        esac
        if [ "$where" = command ] && [[ $line != "\$ "* && $command != *\\ ]]; then
            cat "$tmp/printed"
            where=output
        fi
        if [ "$where" = output ]; then
            [ "$line" = '```' ] || continue
            where=text command=""
        fi
        printf '%s\n' "$line"
        [ "$where" = command ] || continue
        [[ $command == *\\ ]] && command+=$'\n'$line || command=${line#"$ "}
        [[ $command == *\\ ]] || run_last "$command"
    done
}

untimed() { sed 's/; [0-9.]* s$/; T s/' "$1"; }

fill <"$file" >"$tmp/filled"
if cmp -s <(untimed "$file") <(untimed "$tmp/filled"); then
    exit 0
fi
if [ "$check" = yes ]; then
    diff "$file" "$tmp/filled" | head -n 20 >&2 || true
    echo "scripts/shown.sh: $1 does not show what is printed; scripts/shown.sh $1 mends it" >&2
    exit 1
fi
cat "$tmp/filled" >"$file"
