#!/usr/bin/env bash
# What nvcc makes of the CUDA kernels: cuda_report.sh, from anywhere.  Prints two tables.
#
# 1. A kernel a line: registers (sm_80/90/100), bytes spilled, static shared memory, and how many
#    instructions of its PTX (and its SASS, where cuobjdump is) access global memory by 16 bytes or
#    by fewer, copy tiles to shared memory, load matrices, and use tensor cores.
# 2. An op a line of the program of Llama 3.1 8B, one sequence of 8192: bytes and FLOPs that it must
#    move and do at least, those that its kernels do, and how long the bandwidth or the arithmetic of
#    an H100 and an H200 takes for the latter (tests/bench/kernel_floors.c, which given the topology
#    that a GPU's calibration wrote prints what was measured beside it).
set -euo pipefail
cd "$(dirname "$0")/.."

CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
nvcc=$CUDA_HOME/bin/nvcc
archs=(80 90 100)
[ -x "$nvcc" ] || { echo "cuda_report: no $nvcc (CUDA_HOME=FOLDER)" >&2 && exit 1; }
cuobjdump=$(PATH="$CUDA_HOME/bin:$PATH" command -v cuobjdump || true)
read -ra libraries < <(pkg-config --cflags-only-I glib-2.0 | sed "s/-I/-isystem /g")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# PTX and SASS of one file for one architecture; the facts of both as lines "KERNEL FACT NUMBER".
compile() {
    local source=$1 arch=$2 ptx="$work/kernel.ptx" cubin="$work/kernel.cubin"

    "$nvcc" -std=c++17 -O3 -I. "${libraries[@]}" -arch="compute_$arch" -ptx "$source" -o "$ptx"
    "$CUDA_HOME/bin/ptxas" -v -O3 -arch="sm_$arch" "$ptx" -o "$cubin" 2>&1 | registers "$arch"
    [ "$arch" = 90 ] || return 0
    instructions <"$ptx"
    [ -z "$cuobjdump" ] || "$cuobjdump" -sass "$cubin" | sass
}

registers() {
    awk -v arch="$1" '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] }
    /spill stores/ { print kernel, "spill" arch, $5 + $9 }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) {
            if ($i == "Used") print kernel, "registers" arch, $(i + 1)
            if ($i ~ /^smem/) print kernel, "shared", $(i - 2)
        }
    }'
}

# Width of an access is that of its vector times that of its type.
instructions() {
    awk '
    function bytes(name,    vector, type) {
        vector = name ~ /\.v4/ ? 4 : name ~ /\.v2/ ? 2 : 1
        type = name
        sub(/.*\.[a-z]*/, "", type)
        return vector * type / 8
    }
    /\.entry / { kernel = $0; sub(/.*\.entry /, "", kernel); sub(/\(.*/, "", kernel) }
    /^[ \t]/ {
        name = $1 ~ /^@/ ? $2 : $1
        if (name ~ /^(ld|st)\.global/)
            print kernel, substr(name, 1, 2) (bytes(name) == 16 ? "16" : "less"), 1
        if (name ~ /^cp\.async\.c/) print kernel, "copy", 1
        if (name ~ /^ldmatrix/) print kernel, "matrix", 1
        if (name ~ /^mma/) print kernel, "mma", 1
    }'
}

sass() {
    awk '
    /Function : / { kernel = $NF }
    /(LDG|STG)\./ { print kernel, "sass" (/\.128/ ? "16" : "less"), 1 }
    /LDGSTS/ { print kernel, "sass_copy", 1 }
    /LDSM/ { print kernel, "sass_matrix", 1 }
    /HMMA/ { print kernel, "sass_mma", 1 }
    /(LDL|STL)/ { print kernel, "sass_local", 1 }'
}

# Sums the facts of a kernel, a line each, and shortens the names of templates.
table() {
    c++filt | sed -E 's/^(void )?//; s/\([^()]*\) ([a-z_0-9]+ [0-9]+)$/ \1/; s/__nv_bfloat16/bf16/g; s/, /,/g; s/> >/>>/g' |
        awk -v has_sass="${cuobjdump:+1}" '
    { kernel = $1; sum[kernel, $2] += $3; seen[kernel] = 1 }
    function of(kernel, fact) { return sum[kernel, fact] + 0 }
    END {
        line = "%-58s %-11s %5s %6s %6s %6s %6s %6s %5s %7s %4s"
        printf line, "kernel", "registers", "spill", "shared", "ld 16", "ld <16", "st 16", "st <16",
               "copy", "matrix", "mma"
        print has_sass ? "  SASS: ld+st 16, <16, copy, matrix, mma, local" : ""
        for (kernel in seen) {
            regs = of(kernel, "registers80") "/" of(kernel, "registers90") "/" of(kernel, "registers100")
            printf line, kernel, regs,
                   of(kernel, "spill80") + of(kernel, "spill90") + of(kernel, "spill100"),
                   of(kernel, "shared"), of(kernel, "ld16"), of(kernel, "ldless"),
                   of(kernel, "st16"), of(kernel, "stless"), of(kernel, "copy"),
                   of(kernel, "matrix"), of(kernel, "mma") | "sort"
            print has_sass ? "  " of(kernel, "sass16") " " of(kernel, "sassless") " " \
                  of(kernel, "sass_copy") " " of(kernel, "sass_matrix") " " \
                  of(kernel, "sass_mma") " " of(kernel, "sass_local") : "" | "sort"
        }
    }'
}

for source in exec/cuda/*.cu; do
    for arch in "${archs[@]}"; do
        compile "$source" "$arch"
    done
done | table
echo
build/tests/bench/kernel_floors
