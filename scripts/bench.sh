#!/usr/bin/env bash
# Runs the benchmark programs that `make` has built, below a description of the machine; those named
# *_mpi run at 2 ranks.  Arguments choose programs by name.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "machine:  $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
echo "load:     $(cut -d ' ' -f 1-3 /proc/loadavg) (a busy machine measures its neighbours)"
echo "compiler: $(cc --version | head -n 1)"
echo "revision: $(git describe --always --dirty 2>/dev/null || echo unknown)"

for source in tests/bench/bench_*.c; do
    name=$(basename "$source" .c)
    [ -e "$source" ] || continue
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    printf '\n== %s\n' "$name"
    case $name in
    *_mpi) mpirun --allow-run-as-root --oversubscribe --bind-to none -np 2 "build/tests/bench/$name" ;;
    *) "build/tests/bench/$name" ;;
    esac
done
