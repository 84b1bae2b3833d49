#!/usr/bin/env bash
# What nvcc makes of the CUDA kernels: cuda_report.sh, from anywhere.  Prints two tables.
#
# 1. A kernel a line: registers (sm_80/90/100), bytes spilled, static shared memory, and how many
#    instructions of its PTX (and its SASS, where cuobjdump is) access global memory by 16 bytes or
#    by fewer, copy tiles to shared memory, load matrices, and use tensor cores.
# 2. A kernel a line at the shapes of Llama 3 8B, one sequence of 8192: bytes and FLOPs that it
#    must move and do at least (sim/program/traits.c), those that it does, and how long the
#    bandwidth or the arithmetic of an H100 and an H200 takes for the latter.
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

# N rows, C hidden, F ffn, V vocabulary, R rows of logits at a time, H/K heads, D head_dim, P
# parameters of a block.  H100 SXM and H200 SXM: 3.35 and 4.8 TB/s, 989.4 TFLOP/s dense bf16
# (NVIDIA, data sheets of the H100 and the H200).
floors() {
    awk '
    function row(kernel, must_bytes, bytes, must_flops, flops,    h100, h200) {
        h100 = 1e6 * (bytes / 3.35e12 > flops / 989.4e12 ? bytes / 3.35e12 : flops / 989.4e12)
        h200 = 1e6 * (bytes / 4.8e12 > flops / 989.4e12 ? bytes / 4.8e12 : flops / 989.4e12)
        printf "%-24s %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", kernel, must_bytes / 1e6,
               bytes / 1e6, must_flops / 1e9, flops / 1e9, h100, h200
    }
    BEGIN {
        N = 8192; C = 4096; F = 14336; V = 128256; R = 1024; H = 32; K = 8; D = 128
        P = 218112000; x = 2 * N * C; qkvo = 2 * N * D * (2 * H + 2 * K); pair = N * N * H * D
        printf "%-24s %9s %9s %9s %9s %9s %9s\n", "bf16, N = 8192", "must MB", "does MB",
               "must GF", "does GF", "H100 us", "H200 us"
        row("embed", 2 * x + 4 * N, 2 * x + 4 * N)
        row("embed_backward", 2 * x + 4 * N, x + 4 * N + 2 * V * C + 2 * x) # zeroes dW, adds to it
        row("rmsnorm", 2 * x + 4 * N, 2 * x + 4 * N)
        row("rmsnorm + residual", 4 * x + 4 * N, 4 * x + 4 * N)
        row("rmsnorm_backward", 3 * x + 4 * N, 3 * x + 4 * N + 2 * 256 * 4 * C) # partial sums
        row("layernorm_backward", 3 * x + 8 * N, 3 * x + 8 * N + 4 * 256 * 4 * C)
        row("rope", 2 * 2 * N * D * (H + K), 2 * 2 * N * D * (H + K))
        row("swiglu", 6 * N * F, 6 * N * F)
        row("swiglu_backward", 10 * N * F, 10 * N * F)
        row("gelu", 4 * N * F, 4 * N * F)
        row("gelu_backward", 6 * N * F, 6 * N * F)
        row("cross_entropy (R rows)", 6 * R * V, 10 * R * V) # logits twice: a row outgrows caches
        row("attention", qkvo, qkvo, 2 * pair, 2 * pair * (1 + 64 / N))
        row("attention_backward", 2 * qkvo, 3 * qkvo, 5 * pair, 7 * pair * (1 + 64 / N)) # both kernels
        row("squared_norm (block)", 2 * P, 2 * P)
        row("adamw (block)", 28 * P, 28 * P)
        row("cast_fp8", 1.5 * x, 1.5 * x)
    }'
}

for source in exec/cuda/*.cu; do
    for arch in "${archs[@]}"; do
        compile "$source" "$arch"
    done
done | table
echo
floors
