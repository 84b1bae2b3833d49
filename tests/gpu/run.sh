#!/usr/bin/env bash
# What only a GPU can show, in under 8 minutes once it is built: run.sh [FOLDER], from anywhere.  Every
# kernel against plain loops; benchmarks (bench.sh: calibration, kernels beside their floors, an 8B-shaped
# stack, a 1B model, beside PyTorch where python3 has it); trainings in all layouts against the CPU, by
# MPI and by NCCL, steps as graphs.  Results go to FOLDER ($OUT, build/gpu-results).  The tests are those
# that otherwise run on the simulated device.  In a bundle (make CUDA=1 bundle) it takes what is there
# instead of building.
# Nothing is skipped in silence; wrong numbers fail, a target that is missed or no time doesn't.
set -euo pipefail
out=$(realpath -m "${1:-${OUT:-$(dirname "$0")/../../build/gpu-results}}")
cd "$(dirname "$0")/../.."

failures=0
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l) || gpus=0
if [ "$gpus" -eq 0 ]; then
    echo "SKIP: nvidia-smi finds no GPU"
    exit 77
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
if [ -e Makefile ]; then
    make CUDA=1 all gpu-tests
    bin=build tests=build/tests/gpu floors=build/tests/bench/kernel_floors data=models
else
    bin=bin tests=tests/gpu floors=tests/gpu/kernel_floors data=share/fsdp/models
    PATH=$PWD/bin:$PATH
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$out"
: >"$out/tests.txt"
begin=$SECONDS limit_s=${LIMIT_S:-480} longest_s=${LONGEST_S:-60} reserved_s=0

# A cuDNN that came with PyTorch is as good as one of the machine's.
if ! ldconfig -p | grep -q libcudnn.so.9; then
    cudnn=$(timeout 30 "${PYTHON:-python3}" -c \
        'import nvidia.cudnn, os; print(os.path.join(list(nvidia.cudnn.__path__)[0], "lib"))' \
        2>/dev/null) && export LD_LIBRARY_PATH=$cudnn${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# What figures depend on.
{
    timeout 20 nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,MEMORY
    ldconfig -p | grep -E 'libcud(nn|art)|libcublasLt|libnccl' || true
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
    lscpu
} >"$out/environment.txt" 2>&1 || true

left() { echo $((limit_s - reserved_s - SECONDS + begin)); }
say() { echo "$*" | tee -a "$out/tests.txt"; }

# check NAME COMMAND...: in what is left of the time, and not reserved.  What isn't done in a minute
# hangs, and costs no more than that.
check() {
    local name=$1 seconds status=0 start=$SECONDS
    seconds=$(left)
    seconds=$((seconds < longest_s ? seconds : longest_s))
    shift
    [ "$seconds" -gt 0 ] || { say "SKIP $name: no time is left" && return; }
    timeout -k 5 "$seconds" "$@" >"$tmp/log" 2>&1 </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        say "ok   $name ($((SECONDS - start)) s): $(grep -m 1 '^SKIP' "$tmp/log" || tail -n 1 "$tmp/log")"
    elif [ $((SECONDS - start)) -ge "$seconds" ] && [ "$seconds" -lt "$longest_s" ]; then
        say "SKIP $name: not done in the $seconds s that were left"
    else
        failures=$((failures + 1))
        say "FAIL $name (exit $status after $((SECONDS - start)) s)"
        sed 's/^/     | /' "$tmp/log" | tee -a "$out/tests.txt"
    fi
}

# The benchmarks are most of the time: they have at least this, whatever hangs before.
reserved_s=$((limit_s * 5 / 8))
for program in "$tests"/test_*; do
    [[ $program == *_mpi || $program == *_tcp || $program == *.* ]] ||
        check "$(basename "$program")" env CK_FORK=no "$program"
done
reserved_s=$((limit_s / 8))
BIN=$bin FLOORS=$floors DATA=$data tests/gpu/bench.sh "$out" "$(left)" || failures=$((failures + 1))
reserved_s=0

fitting=
for ranks in 1 2 4; do
    [ "$ranks" -gt "$gpus" ] || fitting+=" $ranks"
done
for program in "$tests"/test_*_tcp; do
    [[ $program == *.* ]] ||
        check "$(basename "$program")" env CK_FORK=no RANKS="$fitting" "$program"
done
echo "(programs *_tcp: with$fitting ranks)"
for ranks in 1 2 4; do
    ranked=(mpirun --oversubscribe --bind-to none -np "$ranks" "$tests/test_train_mpi")
    check "training, $ranks ranks, MPI" "${ranked[@]}"
    if [ "$ranks" -le "$gpus" ]; then
        check "training, $ranks ranks, NCCL" env NCCL=1 "${ranked[@]}"
    else
        say "SKIP training, $ranks ranks, NCCL: $gpus GPUs"
    fi
done
check "a plan" "$bin/fsdp-plan" search --model small-10m --topology dgx-h100 --gpus 1 --global-batch 8 \
    --seq-len 256 -o "$tmp/plan"
for mode in off on auto; do
    check "fsdp-run, graphs $mode" "$bin/fsdp-run" "$tmp/plan" --data "$data/text/shakespeare.txt" \
        --steps 20 --cuda-graph "$mode" --db "$tmp/runs.db"
done
# Test cudnn above compares the numbers; these say what ran, and how fast.
check "fsdp-run, own attention" "$bin/fsdp-run" "$tmp/plan" --data "$data/text/shakespeare.txt" \
    --steps 20 --attention own --db "$tmp/runs.db"
if ldconfig -p | grep -q libcudnn.so.9 || [ -n "${cudnn:-}" ]; then
    check "fsdp-run, cuDNN's attention" "$bin/fsdp-run" "$tmp/plan" \
        --data "$data/text/shakespeare.txt" --steps 20 --attention cudnn --db "$tmp/runs.db"
else
    say "SKIP fsdp-run, cuDNN's attention: neither ldconfig nor python3 knows a libcudnn.so.9"
fi

say "$((SECONDS - begin)) s, $failures failed; results are in $out"
[ "$failures" -eq 0 ]
