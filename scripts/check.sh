#!/usr/bin/env bash
# Runs tests that `make` has built: check.sh PART..., of unit, mpi, e2e, tsan, cudasim, all.  One more
# at a time than there are cores, as some mostly wait (JOBS=N: N); a program's output is shown whole
# when it fails, its last line when it passes.
set -euo pipefail
cd "$(dirname "$0")/.."

jobs_at_once=${JOBS:-$(($(nproc) + 1))}
build=build/asan
logs=build/check
began=$EPOCHREALTIME
mkdir -p "$logs"
rm -f "$logs"/*

# Open MPI leaves memory behind at exit, so leaks are looked for in programs without it only.
export UBSAN_OPTIONS=print_stacktrace=1
# What was freed is kept in 32 MB, not 256: less memory to take from the system again and again.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=32
no_leaks=(env "ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0")
mpirun=(mpirun --allow-run-as-root --oversubscribe --bind-to none)
# Several tests share the cores, so a rank or a thread that waits must not keep one.
export OMPI_MCA_mpi_yield_when_idle=1 OMP_WAIT_POLICY=passive
# For the same reason Check's 4 s for a test that states no limit are too few.
export CK_DEFAULT_TIMEOUT=60

# run NAME SECONDS COMMAND...: in the background, once one of the places is free.
run() {
    local name=$1 seconds=$2
    shift 2
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_at_once" ]; do
        wait -n || true
    done
    run_one "$name" "$logs/${name//[\/ ]/_}" "$seconds" "$@" &
}

run_one() {
    local name=$1 log=$2 seconds=$3 begin=$EPOCHREALTIME status=0 took
    shift 3
    timeout -k 10 "$seconds" "$@" >"$log.log" 2>&1 </dev/null &
    trap 'kill $! 2>/dev/null' TERM
    wait $! || status=$?
    took=$(since "$begin")
    times >"$log.times"
    awk -F '[ ms]+' -v took="$took" -v name="$name" 'NR == 2 {
        printf "%s %.1f %s\n", took, 60 * ($1 + $3) + $2 + $4, name }' "$log.times" >"$log.time"
    if [ "$status" -eq 0 ]; then
        printf '%-4s %-40s %6s s  %s\n' ok "$name" "$took" "$(tail -n 1 "$log.log")"
        return
    fi
    [ "$status" -ne 124 ] || echo "(stopped after $seconds s)" >>"$log.log"
    echo "$name (exit $status)" >"$log.failed"
    printf '%-4s %-40s %6s s  exit %s; its output:\n%s\n' FAIL "$name" "$took" "$status" \
        "$(sed 's/^/     | /' "$log.log")"
}

since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# The test programs of a part: all tests/*/test_*.c but those for a CUDA device, apart from or only
# those that mpirun starts.
programs() {
    for source in tests/*/test_*.c; do
        case $1:$source in
        *:tests/cuda/* | *:tests/cudasim/*) ;;
        mpi:*_mpi.c) echo "${source%.c}" ;;
        mpi:* | unit:*_mpi.c) ;;
        unit:*) echo "${source%.c}" ;;
        esac
    done
}

check_unit() {
    for program in $(programs unit); do
        run "${program#tests/}" 300 "$build/$program"
    done
    for program in sim/test_summary sim/test_summary_memory; do
        run "$program (release)" 300 "build/tests/$program" # thousands of random layouts
    done
}

check_mpi() {
    for program in $(programs mpi); do
        for ranks in 1 2 3 4; do
            run "${program#tests/} -np $ranks" 300 \
                "${no_leaks[@]}" "${mpirun[@]}" -np "$ranks" "$build/$program"
        done
    done
}

# What takes too long for every change: every pair of features that can meet, every kind of wait, many
# summaries.
check_all() {
    local layout program
    for program in test_summary test_summary_memory; do
        run "$program, 10,000 layouts" 1800 env SUMMARY_LAYOUTS=10000 "build/tests/sim/$program"
    done
    while [ -e build/libcudasim.a ] && read -r layout; do
        LAYOUT=$layout NCCL=1 run_simulated_mpi build/checked tests/cuda/test_dropped_wait_mpi 2 lifo asc 1
    done < <(sed -n '/layouts\[\] = {/,/^};/s/.*\.name = "\([^"]*\)".*/\1/p' tests/cuda/test_dropped_wait_mpi.c)
    for ranks in 1 2 3 4 6 8; do
        run "layouts of all axes -np $ranks" 1800 \
            "${no_leaks[@]}" LAYOUTS=all OMP_NUM_THREADS=1 "${mpirun[@]}" -np "$ranks" \
            "$build/tests/exec/test_layouts_4d_mpi"
    done
}

check_e2e() {
    for script in tests/e2e/*.sh; do
        [ ! -e "$script" ] || run "${script#tests/}" 300 "${no_leaks[@]}" BUILD="$build" bash "$script"
    done
}

# TSan refuses to start where the kernel randomises addresses by more bits than it knows
# (vm.mmap_rnd_bits); some containers allow neither that nor to switch it off.
check_tsan() {
    local fixed=(setarch "$(uname -m)" -R)
    "${fixed[@]}" true 2>/dev/null || fixed=()
    for program in exec/test_comm_queue exec/test_runtime exec/test_watchdog; do
        run "$program (tsan)" 300 \
            env TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" "build/tsan/tests/$program"
    done
}

# What runs on the simulated CUDA device (tests/cudasim/cudasim.h): its own tests, and those of the
# real one, which are given SEEDS random schedules in the release build, and the two extreme ones.
check_cudasim() {
    local kind policy seed
    if [ ! -e build/libcudasim.a ]; then
        echo "SKIP cudasim: no headers of CUDA and NCCL in ${CUDA_HOME:-/usr/local/cuda}/include"
        return
    fi
    run "cudasim symbols" 60 tests/cudasim/symbols.sh build/libcudasim.a
    for kind in build build/checked build/asan; do
        for source in tests/cudasim/test_*.c; do
            run "${source%.c} ($kind)" 120 "${no_leaks[@]}" "$kind/${source%.c}"
        done
    done
    shopt -s nullglob
    for source in tests/cuda/test_*.c tests/cuda/test_*.cu; do
        [[ $source != *_mpi.c && $source != *_tcp.c && $source != */test_cudnn_plans.c ]] || continue
        run_simulated build/checked "${source%.*}" lifo asc 1
        run_simulated build/asan "${source%.*}" lifo desc 1
        run_simulated build "${source%.*}" fifo asc 1
        run_simulated build "${source%.*}" lifo desc 1
        for seed in $(seq "${SEEDS:-4}"); do
            [[ $seed -eq 1 || $source != */test_ops.c ]] || break # one stream: nothing to schedule
            policy=$([ $((seed % 2)) -eq 0 ] && echo pct || echo random)
            run_simulated build "${source%.*}" "$policy" random "$seed"
        done
    done
    run "tests/cuda/test_cudnn_plans (build)" 300 build/tests/cuda/test_cudnn_plans
    for kind in build build/asan; do
        run "tests/cuda/run_tcp ($kind)" 400 "${no_leaks[@]}" BUILD="$kind" bash tests/cuda/run_tcp.sh
    done
    run "tests/cuda/run_bench (build)" 200 env BUILD=build bash tests/cuda/run_bench.sh
    run "tests/cuda/run_calibrate (build)" 300 "${no_leaks[@]}" BUILD=build bash tests/cuda/run_calibrate.sh
    check_cudasim_mpi
    check_cudasim_tcp
}

# Programs that start their ranks themselves.
check_cudasim_tcp() {
    local program seed
    run_simulated build tests/cuda/test_host_waits_tcp random asc 1
    for program in tests/cuda/test_train_tcp tests/cuda/test_graphs_tcp; do
        RANKS="1 2" run_simulated build/checked "$program" lifo asc 1
        run_simulated build "$program" fifo asc 1
        run_simulated build "$program" lifo desc 1
        for seed in $(seq $((${SEEDS:-4} / 2))); do
            RANKS=$((seed % 2 * 2 + 2)) run_simulated build "$program" random random "$seed"
        done
    done
    RANKS=2 run_simulated build/asan tests/cuda/test_train_tcp lifo desc 1
    # What a graph alone does is the same code in every layout; all are tried above.
    LAYOUT="full_shard, all in the host" RANKS=2 \
        run_simulated build/asan tests/cuda/test_graphs_tcp lifo desc 1
}

# Trainings on it, joined by MPI alone or by NCCL beside it.  A dropped wait is between two ranks.
check_cudasim_mpi() {
    local program=tests/cuda/test_train_mpi ranks seed
    NCCL=1 run_simulated_mpi build/checked tests/cuda/test_dropped_wait_mpi 2 lifo asc 1
    for ranks in 1 2 4; do
        [ "$ranks" -eq 4 ] || run_simulated_mpi build/checked "$program" "$ranks" lifo asc 1
        run_simulated_mpi build/asan "$program" "$ranks" lifo desc 1
        run_simulated_mpi build "$program" "$ranks" fifo asc 1
        run_simulated_mpi build "$program" "$ranks" lifo desc 1
        NCCL=1 run_simulated_mpi build "$program" "$ranks" fifo asc 1
        for seed in $(seq $((${SEEDS:-4} / 2))); do
            run_simulated_mpi build "$program" "$ranks" random random "$seed"
            [ "$ranks" -eq 1 ] || # alone it has nobody to talk to
                NCCL=1 run_simulated_mpi build "$program" "$ranks" random random "$seed"
        done
        [ "$ranks" -eq 1 ] || NCCL=1 run_simulated_mpi build "$program" "$ranks" lifo desc 1
    done
}

# run_simulated_mpi BUILD PROGRAM RANKS POLICY ORDER SEED
run_simulated_mpi() {
    run "$2 -np $3${NCCL:+ nccl}${LAYOUT:+, $LAYOUT} ($1 $4 $6)" 300 "${no_leaks[@]}" CUDASIM_POLICY="$4" CUDASIM_ORDER="$5" \
        CUDASIM_SEED="$6" "${mpirun[@]}" -np "$3" "$1/$2"
}

# run_simulated BUILD PROGRAM POLICY ORDER SEED
run_simulated() {
    run "$2 ($1 $3 $5)" 300 "${no_leaks[@]}" CUDASIM_POLICY="$3" CUDASIM_ORDER="$4" \
        CUDASIM_SEED="$5" "$1/$2"
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for part in "$@"; do
    "check_$part"
done
wait

passed=$(find "$logs" -name '*.log' | wc -l)
failed=$(find "$logs" -name '*.failed' | wc -l)
printf '\nThe slowest: seconds, of a processor (all ranks and threads), test\n'
# No `head`: sort would be killed by the closed pipe, now and then, and all would count as failed.
sort -k2nr "$logs"/*.time | awk 'NR <= 20 { printf "%8s %8s  %s\n", $1, $2, substr($0, length($1 $2) + 3) }'
awk -v all="$(since "$began")" -v cores="$(nproc)" '{ processor += $2 } END {
    printf "all: %.0f s; %.0f s of a processor, so %d cores were busy for %.0f%% of it\n",
        all, processor, cores, 100 * processor / (all * cores)
}' "$logs"/*.time
printf '\n%d passed, %d failed\n' $((passed - failed)) "$failed"
if [ "$failed" -ne 0 ]; then
    sed 's/^/FAIL /' "$logs"/*.failed
    exit 1
fi
