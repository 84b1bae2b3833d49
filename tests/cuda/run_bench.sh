#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# tests/gpu/bench.sh at the size of the simulated device: what it writes, with and without PyTorch,
# which is played; what fails, and what is left then.  And run.sh around it, with programs that hang.
. "$(dirname "$0")/../e2e/common.bash"
. tests/cuda/floors.bash

mkdir "$tmp/bin"
export BIN=$build FLOORS=$build/tests/bench/kernel_floors DATA=models BLOCK_MODEL=tiny-1m LAYERS=1 WHOLE_MODEL=tiny-gpt2 SEQ=16 BATCH=2 STEPS=3
export CUDASIM_MEM=$((143771 << 20)) CALIBRATE=--tiny PYTHON=false SIMULATED=$build/tests/cuda/simulated_run PATH=$tmp/bin:$PATH

# player NAME: a program, from standard input.
player() {
    { echo '#!/usr/bin/env bash' && cat; } >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}

player nvidia-smi <<<'echo "NVIDIA H200, 570.86.15"'
sed 's/h200-sxm-141gb/simulated/' topologies/one-h200 >"$tmp/topology"
sed 's/h200-sxm-141gb/simulated/' topologies/gpus/h200-sxm-141gb >>"$tmp/topology"
# A calibration with one row: products at half of the dense peak.
player calibrated <<'SCRIPT'
cp "$TOPOLOGY" "${@: -1}"
printf '[measured gemm]\nbf16/busy1/threads1/8192x4096x4096 = 494.75 TFLOP/s\n' >>"${@: -1}"
SCRIPT
player copying <<'SCRIPT'
case "$*" in
calibrate*) calibrated "$@" ;;
*) exec "$SIMULATED" "$@" ;;
esac
SCRIPT
player backwards <<'SCRIPT'
case "$*" in
calibrate*) exit 3 ;;
*--steps*) "$SIMULATED" "$@" | tac ;;
*) exec "$SIMULATED" "$@" ;;
esac
SCRIPT
player dying <<'SCRIPT'
case "$*" in
calibrate*) calibrated "$@" ;;
*--steps*) echo "fsdp-run: a kernel is missing" >&2 && exit 3 ;;
*) exec "$SIMULATED" "$@" ;;
esac
SCRIPT
# 32 tokens in a second; compilation takes longer.
player python <<'SCRIPT'
[ "$1" != -c ] || exit 0
for seconds in 90 80 70 1.5 1 0.5; do echo "{\"step\": 1, \"loss\": 5, \"seconds\": $seconds, \"tokens\": 32}"; done
SCRIPT

# bench NAME STATUS RUN SECONDS
bench() {
    local status=0
    RUN=$3 timeout 100 tests/gpu/bench.sh "$tmp/$1" "$4" >"$tmp/$1.out" 2>"$tmp/$1.err" || status=$?
    [ "$status" -eq "$2" ] || complain "$1: status $status, not $2: $(cat "$tmp/$1".{out,err})"
}

# has FILE PATTERN...
has() {
    local pattern
    for pattern in "${@:2}"; do
        grep -Eq -- "$pattern" "$tmp/$1" || complain "no \"$pattern\" in $1: $(<"$tmp/$1")"
    done
}

figure() {
    sed -n "s/^  \"$2\": \([0-9.e+-]*\)[,}]*$/\1/p" "$tmp/$1/summary.json"
}

bench hurried 0 "$SIMULATED" 0
has hurried/results.md '^- stack.search: not begun, 0 s are over$' 'null \| not measured'
has hurried/summary.json '"figures": \{\},$'
export TOPOLOGY=$tmp/topology
bench plain 0 "$tmp/bin/copying" 100
# 2 * 8192 * 4096^2 FLOPs: 277.8 us at the peak of 989.5 TFLOP/s, 555.6 at half of it, a launch is 3.
has plain/kernel_floors.out '^linear +4096x4096 .* 277\.8 +558\.6 +49\.7 +1/1$' '^attention .* 0/1$' '^head_loss .* 3/4$'
floors_are_filled "$tmp/plain/kernel_floors.out"
has plain/results.md '^# NVIDIA H200$' 'driver 570.86.15' 'MFU .* \| >= 0.50 \| [0-9.e-]+ \| miss \|$' \
    '^- stack: attention cuDNN 9' 'PyTorch \| >= 1 \| null \| not measured' '^\| linear \| [0-9]+ \| ' '^- not beside PyTorch'
has plain/summary.json '"device": "NVIDIA H200", "driver": "570.86.15"' '"failures": 0,$' \
    '"figure": "stack.mfu", "relation": ">=", "bound": 0.50, "value": [0-9.e-]+, "verdict": "miss"' \
    '"figure": "stack.over_pytorch", .*"value": null, "verdict": "not measured"'
[ "$("$build/fsdp-report" "$tmp/plain/runs.db" --json | grep -c '"created"')" -eq 2 ] ||
    complain "not 2 runs in the store"

PYTHON=python bench full 0 "$SIMULATED" 100
floors_are_filled "$tmp/full/kernel_floors.out" all
has full/results.md '^    attention_backward .* 1/1$'
[ "$(figure full pytorch_compiled.tokens_per_second)" = 32 ] || complain "not the median after three"
awk -v ratio="$(figure full stack.over_pytorch)" -v ours="$(figure full stack.tokens_per_second)" \
    -v error="$(figure full stack.step_error)" -v predicted="$(figure full stack.step_calibrated)" \
    -v measured="$(figure full stack.step_seconds)" '
    function far(a, b) { return a == "" || a - b > 1e-4 * b || b - a > 1e-4 * b }
    BEGIN { exit far(ratio, ours / 32) || far(error, 1 - predicted / measured) }' ||
    complain "wrong figures: $(<"$tmp/full/summary.json")"

bench backwards 1 "$tmp/bin/backwards" 100
[ ! -e "$tmp/backwards/kernel_floors.out" ] || complain "backwards: floors without a calibration"
has backwards.out 'stack: its loss did not fall' '3 failed'
has backwards/summary.json '"figure": "stack.step_error", .*"value": null, "verdict": "not measured"'
bench dying 1 "$tmp/bin/dying" 100
has dying/results.md '^- stack.train: exit 3: fsdp-run: a kernel is missing$'

# A part in which the script goes wrong ends no other.
mkdir "$tmp/half"
ln -s "$(realpath "$build/fsdp-plan")" "$tmp/half"
printf '#!/bin/sh\nexit 1\n' >"$tmp/half/fsdp-report"
chmod +x "$tmp/half/fsdp-report"
BIN=$tmp/half PYTHON=python bench half 1 "$tmp/bin/copying" 100
has half/results.md '^- stack: given up \(exit 1\)$' '^- whole: given up \(exit 1\)$' \
    '^\| pytorch_eager.tokens_per_second \| 32 \|$'
has half/summary.json '"failures": 2,$'

# What ends the script leaves what was found before.
player sleeping <<'SCRIPT'
case "$*" in
*whole.plan*) sleep 20 ;;
*) exec copying "$@" ;;
esac
SCRIPT
RUN=$tmp/bin/sleeping tests/gpu/bench.sh "$tmp/ended" 100 >"$tmp/ended.out" 2>&1 &
ended=$!
for _ in $(seq 600); do
    ! grep -qs '^  "stack.mfu":' "$tmp/ended/summary.json" || break
    sleep 0.1
done
kill "$ended"
has ended/results.md '^\| stack.mfu \| '
has ended/summary.json '"figure": "stack.mfu", "relation": ">=", "bound": 0.50, "value": [0-9.e-]+' '\]\}$'

# run.sh where nothing is to be built: what hangs costs what one program may take.
mkdir -p "$tmp/bundle"/{bin,tests/bench,tests/gpu,share/fsdp}
ln -s "$(realpath "$build/fsdp-plan")" "$(realpath "$build/fsdp-report")" "$tmp/bundle/bin"
ln -s "$tmp/bin/dying" "$tmp/bundle/bin/fsdp-run"
ln -s "$PWD/tests/bench/peers" "$tmp/bundle/tests/bench"
ln -s "$PWD/models" "$PWD/topologies" "$tmp/bundle/share/fsdp"
ln -s ../share "$tmp/bundle/tests"
cp tests/gpu/*.sh "$FLOORS" "$tmp/bundle/tests/gpu"
player mpirun <<<'echo "100%: joined"'
cp "$tmp/bin/mpirun" "$tmp/bundle/tests/gpu/test_good"
cp "$tmp/bin/mpirun" "$tmp/bundle/tests/gpu/test_later_tcp"
printf '#!/bin/sh\nexit 1\n' >"$tmp/bundle/tests/gpu/test_bad"
printf '#!/bin/sh\nsleep 30\n' >"$tmp/bundle/tests/gpu/test_hangs"
chmod +x "$tmp/bundle/tests/gpu"/test_*
status=0
LIMIT_S=64 LONGEST_S=2 timeout 100 "$tmp/bundle/tests/gpu/run.sh" "$tmp/dry" >"$tmp/dry.out" 2>&1 || status=$?
[ "$status" -eq 1 ] || complain "run.sh: status $status, not 1: $(<"$tmp/dry.out")"
has dry/tests.txt '^FAIL test_bad \(exit 1 ' '^ok   test_good \([0-9]+ s\): 100%' \
    '^FAIL test_hangs \(exit 124 after [23] s\)' '^ok   test_later_tcp' '^ok   training, 1 ranks, NCCL' \
    '^SKIP training, 2 ranks, NCCL: 1 GPUs' '^[0-9]+ s, [0-9]+ failed; results are in '
has dry/results.md '^# NVIDIA H200$' '^- stack.train: exit 3'
floors_are_filled "$tmp/dry/kernel_floors.out"
has dry/environment.txt '^LD_LIBRARY_PATH='

unset TOPOLOGY
player nvidia-smi <<<'echo "Some Other GPU, 1"'
bench unknown 2 "$SIMULATED" 100
has unknown.err "^bench.sh: no topology is known for 'Some Other GPU': TOPOLOGY=... names one$"

finish "benchmarks are run and summed up"
