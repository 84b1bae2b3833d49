#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# fsdp-run calibrate --device cuda on the simulated device: what it writes, that the planner takes it,
# and what it refuses.  Times mean nothing there.
. "$(dirname "$0")/../e2e/common.bash"
. tests/cuda/floors.bash

run=$build/tests/cuda/simulated_run
# No mpirun here, whatever is installed.
no_mpi=(env "PATH=$tmp/bin")
mkdir "$tmp/bin"

cat >"$tmp/in.topology" <<'END'
[cluster]
name = two-gpus
source = made up
nodes = 1
[node]
gpus = 2
gpu = simulated
[gpu simulated]
source = made up
kind = cuda
bf16 = 100 TFLOP/s
fp32 = 50 TFLOP/s
memory = 80 GB
memory_bandwidth = 1 TB/s
[network nvlink]
kind = nvlink
bandwidth = 100 GB/s
latency = 2 us
END
export CUDASIM_MEM=80000000000
calibrate=("$run" calibrate --device cuda --tiny)
sed 's/simulated/h100-sxm-80gb/' "$tmp/in.topology" >"$tmp/other.topology"
refused 2 'needs --topology T' "${calibrate[@]}" -o "$tmp/out.topology"
refused 2 'has GPUs of type h100-sxm-80gb, and this machine has another: simulated' \
    "${calibrate[@]}" -t "$tmp/other.topology" -o "$tmp/out.topology"
CUDASIM_MEM=40000000000 refused 2 "with 80.0 GB, and this machine's simulated has 40.0 GB" \
    "${calibrate[@]}" -t "$tmp/in.topology" -o "$tmp/out.topology"
refused 2 'its device is a cpu' "${calibrate[@]}" -t localhost -o "$tmp/out.topology"
refused 2 'only with --device cuda' "$run" calibrate -t "$tmp/in.topology" -o "$tmp/out.topology"
refused 2 '"none": must be cudnn, own or auto' "${calibrate[@]}" --attention none \
    -t "$tmp/in.topology" -o "$tmp/out.topology"
refused 3 'attention cudnn: libcudnn.so.9 is cuDNN 9.8.0' env CUDASIM_CUDNN_VERSION=90800 \
    "${calibrate[@]}" --attention cudnn -t "$tmp/in.topology" -o "$tmp/out.topology"
[ ! -e "$tmp/out.topology" ] || complain "a refused calibration wrote something"

timeout 200 "${no_mpi[@]}" CUDASIM_DEVICES=2 "${calibrate[@]}" -t "$tmp/in.topology" \
    -o "$tmp/out.topology" >"$tmp/stdout" 2>"$tmp/stderr" || complain "calibrate: $(<"$tmp/stderr")"
grep -q '^note: by its clocks this simulated has .* of fp32; topology two-gpus states 1 and 50 ' \
    "$tmp/stderr" || complain "calibrated: rates are not compared: $(<"$tmp/stderr")"
for row in 'source=measured by fsdp-run calibrate on simulated.*, attention by cuDNN 9' 'bf16=100 TFLOP/s' 'op_overhead=' \
    'framework_memory_alone=' 'framework_memory=' 'bf16/busy1/threads1/64x256x64=' \
    'attention_backward/bf16/' 'attention_cudnn/bf16/busy1/threads1/64x64=' \
    'attention_backward_cudnn/bf16/' 'attention/fp32/' 'adamw/bf16/' 'head_loss/fp32/' 'all_reduce/bf16/ranks2/16384='; do
    grep -q "^$row" "$tmp/out.topology" || complain "calibrated: no $row in $(<"$tmp/out.topology")"
done
# A microsecond of that device is an op: between the marks of a collective are it and the second mark,
# and none of the work before, during which it was issued.
grep '/ranks2/' "$tmp/out.topology" | grep -v '=2 us$' >"$tmp/longer" &&
    complain "calibrated: between marks is more than a collective: $(<"$tmp/longer")"
! grep -q '^attention.*_cudnn/fp32' "$tmp/out.topology" || complain "calibrated: fp32 by cuDNN"
timeout 60 "$build/fsdp-plan" topology "$tmp/out.topology" >"$tmp/again.topology" ||
    complain "calibrated: not read"
cmp -s "$tmp/out.topology" "$tmp/again.topology" || complain "calibrated: printed otherwise"
timeout 60 "$build/tests/bench/kernel_floors" "$tmp/out.topology" >"$tmp/floors" ||
    complain "calibrated: no floors"
floors_are_filled "$tmp/floors" all
refused 2 'in.topology: no rows of a GPU are in it' "$build/tests/bench/kernel_floors" "$tmp/in.topology"
for topology in in out; do
    timeout 60 "$build/fsdp-plan" estimate --model models/tiny-1m --topology \
        "$tmp/$topology.topology" --layout dp_shard=2 --seq-len 64 --json >"$tmp/$topology.json" ||
        complain "calibrated: no plan"
    grep -m 1 '"step_seconds"' "$tmp/$topology.json" >"$tmp/$topology.seconds"
done
! cmp -s "$tmp/in.seconds" "$tmp/out.seconds" || complain "calibration changes no prediction"

finish "a machine of two GPUs is calibrated"
