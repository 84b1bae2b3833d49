#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# A plan for GPUs where there is none: one line says what is missing, and nothing runs.
. "$(dirname "$0")/common.bash"

text=$tmp/text plan=$tmp/gpu.plan
make_text "$text"
timeout 60 "$build/fsdp-plan" search --model models/tiny-1m --topology dgx-h100 --gpus 2 \
    --global-batch 4 --seq-len 32 -o "$plan" >/dev/null || die "fsdp-plan search: status $?"

# refused STATUS TEXT COMMAND...: that status, and one line with that text.
refused() {
    local want=$1 text=$2 status=0
    shift 2
    timeout 60 "$@" >"$tmp/stdout" 2>"$tmp/stderr" </dev/null || status=$?
    [ "$status" -eq "$want" ] || complain "$*: status $status, not $want"
    [ "$(wc -l <"$tmp/stderr")" -eq 1 ] || complain "$*: stderr: $(<"$tmp/stderr")"
    grep -q "$text" "$tmp/stderr" || complain "$*: \"$text\" is not in: $(<"$tmp/stderr")"
    [ ! -s "$tmp/stdout" ] || complain "$*: stdout: $(head -n 1 "$tmp/stdout")"
}

refused 2 "the plan's is cuda" "$build/fsdp-run" "$plan" --data "$text" --device cpu

# A program without the plug-in, whatever was built.
mkdir -p "$tmp/bin"
cp "$build/fsdp-run" "$tmp/bin/"
refused 3 'make CUDA=1' "$tmp/bin/fsdp-run" "$plan" --data "$text"
refused 3 'make CUDA=1' "$tmp/bin/fsdp-run" "$plan" --data "$text" --device cuda

# With it, no driver; with NVIDIA's stub of a driver all of the plug-in loads, and finds no GPU.
plug_in=build/fsdp-cuda.so stub=${CUDA_HOME:-/usr/local/cuda}/lib64/stubs/libcuda.so
loaded="no plug-in was built"
if [ -e "$plug_in" ] && ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    cp "$plug_in" "$tmp/bin/"
    refused 3 'no NVIDIA driver' "$tmp/bin/fsdp-run" "$plan" --data "$text"
    loaded="the plug-in finds no driver"
    if [ -e "$stub" ]; then
        mkdir "$tmp/stub"
        ln -s "$stub" "$tmp/stub/libcuda.so.1"
        refused 3 'no GPU can be used here' env LD_LIBRARY_PATH="$tmp/stub" \
            "$tmp/bin/fsdp-run" "$plan" --data "$text"
        loaded="the plug-in finds no driver, then no GPU"
    fi
fi
finish "a plan for GPUs is refused here ($loaded)"
