#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# tests/gpu/bench.sh at the size of the simulated device: what it writes, with and without PyTorch,
# which is played; and what fails.
. "$(dirname "$0")/../e2e/common.bash"

mkdir "$tmp/bin"
export BIN=$build DATA=models BLOCK_MODEL=tiny-1m LAYERS=1 WHOLE_MODEL=tiny-gpt2 SEQ=16 BATCH=2 STEPS=3
export CUDASIM_MEM=$((143771 << 20)) CALIBRATE=--tiny PYTHON=false SIMULATED=$build/tests/cuda/simulated_run PATH=$tmp/bin:$PATH

# player NAME: a program, from standard input.
player() {
    { echo '#!/usr/bin/env bash' && cat; } >"$tmp/bin/$1"
    chmod +x "$tmp/bin/$1"
}

player nvidia-smi <<<'echo "NVIDIA H200, 570.86.15"'
sed 's/h200-sxm-141gb/simulated/' topologies/one-h200 >"$tmp/topology"
sed 's/h200-sxm-141gb/simulated/' topologies/gpus/h200-sxm-141gb >>"$tmp/topology"
player copying <<'SCRIPT'
case "$*" in
calibrate*) cp "$TOPOLOGY" "${@: -1}" ;;
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
calibrate*) exit 3 ;;
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
has plain/results.md '^# NVIDIA H200$' 'driver 570.86.15' 'MFU .* \| >= 0.50 \| [0-9.e-]+ \| miss \|$' \
    'PyTorch \| >= 1 \| null \| not measured' '^\| linear \| [0-9]+ \| ' '^- not beside PyTorch'
has plain/summary.json '"device": "NVIDIA H200", "driver": "570.86.15"' '"failures": 0,$' \
    '"figure": "stack.mfu", "relation": ">=", "bound": 0.50, "value": [0-9.e-]+, "verdict": "miss"' \
    '"figure": "stack.over_pytorch", .*"value": null, "verdict": "not measured"'
[ "$("$build/fsdp-report" "$tmp/plain/runs.db" --json | grep -c '"created"')" -eq 2 ] ||
    complain "not 2 runs in the store"

PYTHON=python bench full 0 "$SIMULATED" 100
[ "$(figure full pytorch_compiled.tokens_per_second)" = 32 ] || complain "not the median after three"
awk -v ratio="$(figure full stack.over_pytorch)" -v ours="$(figure full stack.tokens_per_second)" \
    -v error="$(figure full stack.step_error)" -v predicted="$(figure full stack.step_calibrated)" \
    -v measured="$(figure full stack.step_seconds)" '
    function far(a, b) { return a == "" || a - b > 1e-4 * b || b - a > 1e-4 * b }
    BEGIN { exit far(ratio, ours / 32) || far(error, 1 - predicted / measured) }' ||
    complain "wrong figures: $(<"$tmp/full/summary.json")"

bench backwards 1 "$tmp/bin/backwards" 100
has backwards.out 'stack: its loss did not fall' '3 failed'
has backwards/summary.json '"figure": "stack.step_error", .*"value": null, "verdict": "not measured"'
bench dying 1 "$tmp/bin/dying" 100
has dying/results.md '^- stack.train: exit 3: fsdp-run: a kernel is missing$'

unset TOPOLOGY
player nvidia-smi <<<'echo "Some Other GPU, 1"'
bench unknown 2 "$SIMULATED" 100
has unknown.err "^bench.sh: no topology is known for 'Some Other GPU': TOPOLOGY=... names one$"

finish "benchmarks are run and summed up"
