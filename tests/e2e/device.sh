#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# A plan for GPUs where there is none: one line says what is missing, and nothing runs.
. "$(dirname "$0")/common.bash"

text=$tmp/text plan=$tmp/gpu.plan
make_text "$text"
timeout 60 "$build/fsdp-plan" search --model models/tiny-1m --topology dgx-h100 --gpus 2 \
    --global-batch 4 --seq-len 32 -o "$plan" >/dev/null || die "fsdp-plan search: status $?"

# refused_silently STATUS PATTERN COMMAND...: nothing on stdout either.
refused_silently() {
    refused "$@"
    [ ! -s "$tmp/stdout" ] || complain "${*:3}: stdout: $(head -n 1 "$tmp/stdout")"
}

refused_silently 2 "the plan's is cuda" "$build/fsdp-run" "$plan" --data "$text" --device cpu

# Heads that no attention kernel takes.
mkdir "$tmp/wide"
sed 's/"hidden_size"/"head_dim": 264, &/' models/tiny-1m/config.json >"$tmp/wide/config.json"
timeout 60 "$build/fsdp-plan" search --model "$tmp/wide" --topology dgx-h100 --gpus 2 \
    --global-batch 4 --seq-len 32 -o "$tmp/wide.plan" >/dev/null || die "fsdp-plan search: status $?"
refused_silently 2 'head_dim = 264: .*even ones of at most 256' "$build/fsdp-run" "$tmp/wide.plan" \
    --data "$text"

# A program without the plug-in, whatever was built.
mkdir -p "$tmp/bin"
cp "$build/fsdp-run" "$tmp/bin/"
refused_silently 3 'make CUDA=1' "$tmp/bin/fsdp-run" "$plan" --data "$text"
refused_silently 3 'make CUDA=1' "$tmp/bin/fsdp-run" "$plan" --data "$text" --device cuda

# With it, no driver; with NVIDIA's stub of a driver all of the plug-in loads, and finds no GPU.
plug_in=build/fsdp-cuda.so stub=${CUDA_HOME:-/usr/local/cuda}/lib64/stubs/libcuda.so
loaded="no plug-in was built"
if [ -e "$plug_in" ] && ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    cp "$plug_in" "$tmp/bin/"
    refused_silently 3 'no NVIDIA driver' "$tmp/bin/fsdp-run" "$plan" --data "$text"
    loaded="the plug-in finds no driver"
    if [ -e "$stub" ]; then
        mkdir "$tmp/stub"
        ln -s "$stub" "$tmp/stub/libcuda.so.1"
        refused_silently 3 'no GPU can be used here' env LD_LIBRARY_PATH="$tmp/stub" \
            "$tmp/bin/fsdp-run" "$plan" --data "$text"
        loaded="the plug-in finds no driver, then no GPU"
    fi
fi
finish "a plan for GPUs is refused here ($loaded)"
