#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# fsdp-run for GPUs without MPI, on the simulated device: ranks that other launchers start, that
# srun starts, that it starts itself; what goes wrong is said in one line, and nothing is left.
. "$(dirname "$0")/../e2e/common.bash"

run=$build/tests/cuda/simulated_run
text=$tmp/text
make_text "$text"
export CUDASIM_DEVICES=4
# No mpirun here, whatever is installed.
no_mpi=(env "PATH=$tmp/bin")
mkdir "$tmp/bin"

# Kernels are slow here: fewer and narrower layers than any model that ships.
mkdir "$tmp/narrow"
sed 's/\("hidden_size": \).*/\164,/; s/\("intermediate_size": \).*/\196,/; s/\("num_hidden_layers": \).*/\12,/' \
    models/tiny-1m/config.json >"$tmp/narrow/config.json"

# gpu_plan FILE OPTION...
gpu_plan() {
    timeout 60 "$build/fsdp-plan" search --model "$tmp/narrow" --topology dgx-h100 \
        --precision "${precision:-fp32}" --global-batch 4 --seq-len 16 -o "$1" "${@:2}" >/dev/null ||
        die "fsdp-plan search: status $?"
}

gpu_plan "$tmp/1.plan" --gpus 1
precision=bf16 gpu_plan "$tmp/bf16.plan" --gpus 1
precision=bf16 gpu_plan "$tmp/bf16-2.plan" --gpus 2 --strategy full_shard --fix dp_shard=2
gpu_plan "$tmp/2.plan" --gpus 2 --strategy full_shard --fix dp_shard=2
gpu_plan "$tmp/4.plan" --gpus 4 --strategy shard_grad_op --fix dp_shard=2,tp=2
plan "$tmp/cpu.plan" --gpus 2 --global-batch 4 --seq-len 32
plan "$tmp/one-cpu.plan" --gpus 1 --global-batch 4 --seq-len 32

# free_port: one that nobody has now.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 10000))
        grep -qi ":$(printf '%04X' "$port") " /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
    done
    echo "$port"
}

# launch NAME RANKS VARIABLES ARGUMENT...: ranks with those variables; %r is the rank.  Sets pids;
# output goes to NAME.RANK.out and .err.
launch() {
    local rank variables arguments=("${@:4}")
    name=$1 ranks=$2 pids=()
    for ((rank = 0; rank < ranks; rank++)); do
        read -ra variables <<<"${3//%r/$rank}"
        env "${variables[@]}" "$run" "${arguments[@]//%r/$rank}" --data "$text" \
            >"$tmp/$name.$rank.out" 2>"$tmp/$name.$rank.err" </dev/null &
        pids[rank]=$!
    done
}

# ended STATUS SECONDS [RANK]: all ranks but that one, with that status, in that time.
ended() {
    local rank status begin=$SECONDS
    [ -z "${3:-}" ] || wait "${pids[$3]}" 2>/dev/null || true
    for ((rank = 0; rank < ranks; rank++)); do
        [ "$rank" != "${3:-}" ] || continue
        status=0
        wait "${pids[rank]}" || status=$?
        [ "$status" -eq "$1" ] ||
            complain "$name: rank $rank: status $status, not $1: $(<"$tmp/$name.$rank.err")"
    done
    [ $((SECONDS - begin)) -le "$2" ] || complain "$name: ended after $((SECONDS - begin)) s"
}

# says RANK PATTERN: that rank's one line.
says() {
    local file=$tmp/$name.$1.err
    grep -Eq "^fsdp-run: .*$2" "$file" || complain "$name: no \"$2\" in: $(<"$file")"
    [ "$(grep -vc '^  [a-z]' "$file")" -eq 1 ] || complain "$name: rank $1: more lines: $(<"$file")"
}

# losses FILE: of a run with --json.
losses() {
    sed -n 's/.*"loss": \([^,]*\), .*/\1/p' "$1"
}

same_losses() {
    [ "$(losses "$1" | wc -l)" -eq 3 ] || complain "$name: not 3 steps: $(<"$1")"
    paste <(losses "$tmp/1.out") <(losses "$1") | awk '
        function far(a, b) { return a - b > 1e-5 * b || b - a > 1e-5 * b }
        far($2, $1) { exit 1 }' || complain "$name trains another model than 1 rank"
}

torchrun() {
    echo "RANK=%r LOCAL_RANK=%r WORLD_SIZE=$1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$(free_port)"
}

# ---- trained ----

timeout 120 "$run" "$tmp/1.plan" --data "$text" --steps 3 --json >"$tmp/1.out" 2>"$tmp/1.err" ||
    die "one rank: status $?: $(<"$tmp/1.err")"

for ranks_wanted in 2 4; do
    launch "torchrun-$ranks_wanted" "$ranks_wanted" "$(torchrun "$ranks_wanted")" \
        "$tmp/$ranks_wanted.plan" --steps 3 --json
    ended 0 120
    same_losses "$tmp/$name.0.out"
    grep -q 'NCCL, ranks joined over TCP' "$tmp/$name.0.err" || complain "$name: joined otherwise"
done

launch srun 2 "SLURM_PROCID=%r SLURM_LOCALID=%r SLURM_STEP_NUM_TASKS=2 SLURM_JOB_NODELIST=localhost \
    SLURM_JOB_ID=$((RANDOM % 16000))" "$tmp/2.plan" --steps 3 --json
ended 0 120
same_losses "$tmp/$name.0.out"

for mode in on auto; do
    launch "graphs-$mode" 2 "$(torchrun 2)" "$tmp/2.plan" --steps 10 --json --cuda-graph "$mode" \
        --db "$tmp/graphs-$mode.db"
    ended 0 120
    losses "$tmp/$name.0.out" | head -n 3 >"$tmp/$name.losses"
    losses "$tmp/torchrun-2.0.out" | cmp -s - "$tmp/$name.losses" || complain "$name: other losses"
    timeout 60 "$build/fsdp-report" "$tmp/$name.db" >"$tmp/$name.report"
done
for file in graphs-on.0.err graphs-on.report; do
    grep -q 'cuda graphs *on from step 3 on' "$tmp/$file" || complain "not on: $(<"$tmp/$file")"
done
for file in graphs-auto.0.err graphs-auto.report; do
    grep -Eq 'cuda graphs *(on|off) from step 11 on.*: a step took [0-9.e+-]+ ms with, [0-9.e+-]+' \
        "$tmp/$file" || complain "not decided: $(<"$tmp/$file")"
done

# Alone nothing passes through the host, so a step can be a graph, also where shards are copied.
name="alone"
gpu_plan "$tmp/alone.plan" --gpus 1 --strategy full_shard
for plan in 1 alone; do
    timeout 120 "$run" "$tmp/$plan.plan" --data "$text" --steps 10 --json --cuda-graph on \
        >"$tmp/alone.all" 2>"$tmp/alone.err" || complain "alone: status $?: $(<"$tmp/alone.err")"
    head -n 3 "$tmp/alone.all" >"$tmp/alone.out"
    same_losses "$tmp/alone.out"
    grep -q 'cuda graphs *on from step 3 on' "$tmp/alone.err" || complain "no graph: $(<"$tmp/alone.err")"
done

name="by-hand"
timeout 120 "${no_mpi[@]}" "$run" "$tmp/4.plan" --data "$text" --steps 3 --json --db "$tmp/db" \
    >"$tmp/by-hand.out" 2>"$tmp/by-hand.err" || complain "by hand: status $?: $(<"$tmp/by-hand.err")"
same_losses "$tmp/by-hand.out"

# The simulated NCCL says 10 us and 50 GB/s of what a rank has: of groups of 2, all that it receives.
timeout 60 "$build/fsdp-report" "$tmp/db" >"$tmp/by-hand.report"
grep -q 'NCCL estimates' "$tmp/by-hand.report" || complain "no estimates: $(<"$tmp/by-hand.report")"
timeout 60 "$build/fsdp-report" "$tmp/db" --json >"$tmp/by-hand.json"
for kind in all_gather reduce_scatter; do
    awk -v kind="$kind" '
        /"rank"/ { rank = $3 + 0 }
        /"term"/ { term = $3; gsub(/[",]/, "", term) }
        /"measured"/ && rank == 1 && term == "communication_bytes." kind { bytes = $3 + 0 }
        /"estimated"/ && rank == 1 && term == "communication_seconds." kind { seconds = $3 + 0 }
        END {
            ops = (seconds - bytes / 50e9) / 10e-6
            exit !(ops > 3 && ops - int(ops + 0.5) < 0.01 && int(ops + 0.5) - ops < 0.01)
        }' "$tmp/by-hand.json" || complain "estimated $kind: $(grep -A6 "_seconds.$kind" "$tmp/by-hand.json")"
done

# Attention: cuDNN (of the simulated device) where it can, which the record says.
for by in auto own; do
    name="attention-$by"
    timeout 120 "$run" "$tmp/bf16.plan" --data "$text" --steps 3 --json --attention "$by" \
        --db "$tmp/$name.db" >"$tmp/$name.out" 2>"$tmp/$name.err" ||
        complain "$name: status $?: $(<"$tmp/$name.err")"
    timeout 60 "$build/fsdp-report" "$tmp/$name.db" >"$tmp/$name.report"
done
for file in attention-auto.err attention-auto.report; do
    grep -q '^ *attention *cuDNN 9' "$tmp/$file" || complain "not by cuDNN: $(<"$tmp/$file")"
done
grep -q '^ *attention *own kernels$' "$tmp/attention-own.err" || complain "own attention is not said"
paste <(losses "$tmp/attention-auto.out") <(losses "$tmp/attention-own.out") | awk '
    function far(a, b) { return a - b > 1e-3 * b || b - a > 1e-3 * b }
    far($2, $1) { exit 1 }' || complain "cuDNN's attention trains another model"
grep -q 'attention *own kernels (cuDNN: it is used for bf16, and here fp32 gives fp32)' \
    "$tmp/1.err" || complain "why there is no cuDNN is not said: $(<"$tmp/1.err")"
# A cuDNN that is wrong on rank 1 is used by no rank.
wrong_on_1="CUDASIM_CUDNN_SCALE=1.%r"
launch attention-differs 2 "$(torchrun 2) $wrong_on_1" "$tmp/bf16-2.plan" --steps 3 --json
ended 0 120
grep -q "attention *own kernels (cuDNN: another rank can't use it)" "$tmp/$name.0.err" ||
    complain "rank 0 does not follow rank 1: $(<"$tmp/$name.0.err")"
launch attention-asked 2 "$(torchrun 2) $wrong_on_1" "$tmp/bf16-2.plan" --attention cudnn
ended 3 120
says 0 "attention cudnn: another rank can't use it"

# ---- what can't be ----

one=(env RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1)
refused 2 'no MASTER_PORT' "${one[@]}" "$run" "$tmp/2.plan" --data "$text"
one+=("MASTER_PORT=$(free_port)")
refused 2 'the plan has 4 ranks, and WORLD_SIZE=2' "${one[@]}" "$run" "$tmp/4.plan" --data "$text"
refused 2 'by MPI alone; type: mpirun -np 2' "${one[@]}" "$run" "$tmp/cpu.plan" --data "$text"
refused 3 'rank 1 did not come to 127.0.0.1' "${one[@]}" "$run" "$tmp/2.plan" --data "$text" \
    --watchdog 1
refused 3 '4 ranks of this machine would share 3 GPUs' "${one[@]}" WORLD_SIZE=4 CUDASIM_DEVICES=3 \
    "$run" "$tmp/4.plan" --data "$text"
refused 3 'mpirun is not in PATH' env CUDASIM_DEVICES=1 "${no_mpi[@]}" \
    "$run" "$tmp/4.plan" --data "$text"

refused 2 'cuda-graph = "maybe": must be on, off or auto' "$run" "$tmp/2.plan" --data "$text" \
    --cuda-graph maybe
refused 2 "this plan's device is a CPU" "$build/fsdp-run" "$tmp/one-cpu.plan" --data "$text" \
    --cuda-graph on

refused 2 'attention = "maybe": must be cudnn, own or auto' "$run" "$tmp/2.plan" --data "$text" \
    --attention maybe
refused 2 "attention cudnn: this plan's device is a CPU" "$build/fsdp-run" "$tmp/one-cpu.plan" \
    --data "$text" --attention cudnn
refused 3 'attention cudnn: it is used for bf16, and here fp32' "$run" "$tmp/1.plan" \
    --data "$text" --attention cudnn

cp "$tmp/2.plan" "$tmp/two.0.plan"
gpu_plan "$tmp/two.1.plan" --gpus 2 --strategy no_shard
launch two-plans 2 "$(torchrun 2)" "$tmp/two.%r.plan"
ended 2 20
for rank in 0 1; do
    says "$rank" 'rank 1 \(pid [0-9]+ on host .*\) runs fsdp-run .*, program .*, rank 0 fsdp-run'
done

same=$(torchrun 4)
launch same-rank 4 "${same/RANK=%r/RANK=1}" "$tmp/4.plan" --watchdog 2
ended 3 20
says 2 'nobody waits at 127.0.0.1, port [0-9]+, as rank 0 of this job, within 2 s: Connection refused'

# ---- stopped and killed ----

trains() {
    grep -qs '^step *2/' "$tmp/$name.$1out"
}

# forever NAME RANKS: up to where all train.
forever() {
    launch "$1" "$2" "$(torchrun "$2")" "$tmp/$2.plan" --steps 100000 --db "$tmp/$1.db"
    wait_for 60 trains 0. || die "$1: no second step: $(<"$tmp/$1.0.err")"
}

forever stopped 2
kill -TERM "${pids[1]}"
ended 0 10

for victim in 0 1 3; do
    forever "killed-$victim" 4
    kill -KILL "${pids[victim]}"
    ended 3 10 "$victim"
    for ((rank = 0; rank < 4; rank++)); do
        [ "$rank" -eq "$victim" ] ||
            says "$rank" "rank $victim \\(pid ${pids[victim]} on host .*\\) died"
    done
done

# ended_by NAME SIGNAL PATTERN: one of those that fsdp-run has started itself, with that signal; all
# end, with a line of that pattern, where %p is its pid.
ended_by() {
    local status=0
    name=$1
    "${no_mpi[@]}" "$run" "$tmp/4.plan" --data "$text" --steps 100000 --watchdog 5 \
        --db "$tmp/$name.db" >"$tmp/$name.out" 2>"$tmp/$name.err" </dev/null &
    runner=$!
    wait_for 60 trains '' || die "$name: no second step: $(<"$tmp/$name.err")"
    mapfile -t pids < <(pgrep -P "$runner")
    [ "${#pids[@]}" -eq 4 ] || complain "$name: ${#pids[@]} ranks"
    kill "-$2" "${pids[2]}"
    wait "$runner" || status=$?
    [ "$status" -eq 3 ] || complain "$name: status $status, not 3: $(<"$tmp/$name.err")"
    grep -Eq "^fsdp-run: .*${3//%p/${pids[2]}}" "$tmp/$name.err" ||
        complain "$name: no \"$3\" in: $(<"$tmp/$name.err")"
    pgrep -f "$tmp/$name.db" >/dev/null && complain "$name: left $(pgrep -af "$tmp/$name.db")"
    return 0
}

ended_by killed-by-hand KILL '\(pid %p on host .*\) died'
ended_by held-up-by-hand STOP 'watchdog: no progress for 5 s, held up by'

finish "ranks meet without MPI"
