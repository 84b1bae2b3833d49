#!/usr/bin/env bash
# Refuses what the project does not want in its tree: lint.sh, from anywhere.  CONTRIBUTING.md says
# why.  Format, include floors, lengths of functions and files, parameters, shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t code < <(find sim exec reports tests -name '*.[ch]' | sort)
mapfile -t headers < <(printf '%s\n' "${code[@]}" | grep '\.h$')
mapfile -t kernels < <(find exec tests -name '*.cu' -o -name '*.cuh' | sort)
mapfile -t shell < <(find scripts tests .ci -name '*.sh' -o -path .ci/run | sort)
mapfile -t rest < <(find Makefile ./*.md scripts .ci tests reports/docs -type f \
    ! -name '*.json' ! -name '*.[ch]' 2>/dev/null | sort)

failed=0
# refuse RULE, with a line of input for each place that breaks it.
refuse() {
    local places
    places=$(cat)
    [ -n "$places" ] || return 0
    printf '%s\n' "$places" | sed "s/\$/: $1/"
    failed=1
}

format() {
    clang-format --dry-run -Werror "${code[@]}" "${kernels[@]}" 2>&1 | sed -n 's/:[0-9:]* error: .*//p' | uniq -c |
        awk '{ print $2 ": " $1 " places" }'
}

# Who may include whom.  Within sim/, exec/ and reports/ a file includes its own floor and those below it.
floors() {
    awk '
    BEGIN {
        names = "sim/base sim/input sim/import sim/layout sim/config sim/program sim/cost sim/summary sim/search sim/backtest sim/export sim"
        for (i = split(names, list, " "); i > 0; i--) floors[list[i]] = i
        names = "exec/base exec/launch exec/device exec/comm exec/cuda exec/run exec/calibrate exec"
        for (i = split(names, list, " "); i > 0; i--) floors[list[i]] = i
        names = "reports/store reports/report reports/feedback reports/picture reports"
        for (i = split(names, list, " "); i > 0; i--) floors[list[i]] = i
    }
    function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
    function tree(path) { sub(/\/.*/, "", path); return path }
    function say(why) { print FILENAME ":" FNR ": " $0 ": " why }
    FNR == 1 && FILENAME !~ /^tests\// && !(folder(FILENAME) in floors) { say("a folder without a floor") }
    !/^#include "/ { next }
    {
        split($0, part, "\""); to = part[2]; from = FILENAME
        if (system("test -f " to) != 0) say("not a path from the root of the tree")
        if (from ~ /^tests\//) next
        if (tree(from) == tree(to) && floors[folder(to)] > floors[folder(from)]) say("a higher floor")
        if (from ~ /^sim\// && to ~ /^exec\//) say("sim/ never includes exec/")
        if (from ~ /^sim\/[^\/]*\// && to ~ /^reports\//) say("only the command line includes reports/")
        if (from ~ /^reports\// && from !~ /^reports\/feedback\// && to !~ /^(sim\/base|reports)\//)
            say("reports/ includes sim/base/ and itself only")
        if (from ~ /^reports\// && to !~ /^(sim\/[^\/]*|reports)\//)
            say("reports/ includes sim/ without its command line, and itself")
        if (from ~ /^exec\// && to ~ /^reports\/feedback\//) say("exec/ does not feed back")
        if (from ~ /^exec\// && to ~ /^sim\/(cost|summary|backtest|export|import|config)\// && to != "sim/import/hostlist.h")
            say("exec/ includes neither cost nor what it serves")
        if (from ~ /^exec\// && to ~ /^sim\/search\// && to != "sim/search/plan.h")
            say("exec/ includes the plan file, not the search")
    }' "${code[@]}"
}

# Functions of clang-formatted code: from a "{" alone in the first column to its "}".  The lines
# above it, back to an empty line or an end of something, are the signature.  A last GError ** is not
# counted as a parameter.  Prints FILE:LINE: NAME KIND NUMBER.
measure() {
    awk '
    function parameters(text,    i, c, depth, count) {
        sub(/, +GError \*\*[a-z_]+\)/, ")", text)
        count = text ~ /^[^(]*\((void)?\)/ ? 0 : 1
        for (i = index(text, "("); i <= length(text); i++) {
            c = substr(text, i, 1)
            if (c == "(") depth++
            else if (c == ")" && --depth == 0) break
            else if (c == "," && depth == 1) count++
        }
        return count
    }
    FNR == 1 { signature = ""; open = 0 }
    /^{$/ {
        open = FNR; name = signature; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
        print FILENAME ":" first ": " name " parameters " parameters(signature)
    }
    /^}$/ && open { print FILENAME ":" first ": " name " lines " FNR - first + 1; open = 0 }
    /^$|^[#}{]|[;}]$|\*\/$/ { signature = ""; next }
    !open { if (signature == "") first = FNR; signature = signature " " $0 }' "${code[@]}"
}

over() { awk -v kind="$1" -v limit="$2" '$3 == kind && $4 > limit' <<<"$measured"; }

# Those for CUDA are looked at where its headers are; cu_port.h is C++, and every kernel's first.
self_contained() {
    for header in "${headers[@]}"; do
        case $header in
        exec/cuda/cu_port.h) continue ;;
        exec/cuda/* | tests/cuda/* | tests/cudasim/*) [ -e "$cuda/cuda_runtime_api.h" ] || continue ;;
        esac
        printf '#include "%s"\n' "$header" |
            mpicc -std=gnu11 -I. "${libraries[@]}" -fsyntax-only -x c - 2>/dev/null || echo "$header"
    done
}

for tool in clang-format shellcheck mpicc pkg-config; do
    command -v "$tool" >/dev/null || { echo "lint: no $tool; 'make deps' installs it" >&2 && exit 1; }
done
cuda=${CUDA_HOME:-/usr/local/cuda}/include
read -ra libraries < <(pkg-config --cflags json-glib-1.0 sqlite3 openblas check)
libraries+=(-isystem "$cuda")
found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
# What takes time, side by side.
format >"$found/format" &
self_contained >"$found/alone" &
shellcheck -f gcc "${shell[@]}" >"$found/shell" || true &
measured=$(measure)
wait

refuse 'not as clang-format -i leaves it' <"$found/format"
refuse 'include' < <(floors)
refuse 'longer than 100 lines' < <(over lines 100)
refuse 'more than 6 parameters' < <(over parameters 6 |
    grep -vE '^tests/cudasim/[^ ]* (cuda|cublas|nccl)[A-Z]') # NVIDIA's, not ours
refuse 'longer than 700 lines' < <(wc -l "${code[@]}" "${shell[@]}" | awk '$1 > 700 && $2 != "total"')
refuse 'no #pragma once' < <(grep -L '^#pragma once$' "${headers[@]}")
refuse 'does not compile alone' <"$found/alone"
refuse 'finish it, or leave it out' < <(grep -nE '\b(TO[D]O|FIX[M]E|XX[X])\b' "${code[@]}" "${rest[@]}")
refuse 'shellcheck' <"$found/shell"

over lines 60 | sed 's/^/note: longer than 60 lines: /'
if [ "$failed" -ne 0 ]; then
    echo "lint: failed" >&2
    exit 1
fi
echo "lint: ${#code[@]} C files and ${#shell[@]} scripts are as they should be"
