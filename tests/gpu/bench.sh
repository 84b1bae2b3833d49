#!/usr/bin/env bash
# What fsdp-run reaches on one GPU, beside what was predicted and beside PyTorch: bench.sh FOLDER SECONDS,
# for run.sh.  FOLDER gets the calibrated topology, kernels beside their floors, plans, the store of the runs, what each program said,
# results.md and summary.json, which are written anew after each part: whatever ends the script leaves
# what was found before, and a part that fails ends no other.  A target that is missed is said so; what
# fails, or doesn't learn, fails the script; what there is no time for and no PyTorch are notes.
#
# From the environment: BIN (folder of the programs), FLOORS (kernel_floors) and DATA (models/); RUN
# (another fsdp-run), TOPOLOGY (with this GPU, else found by its name), PYTHON (which may have PyTorch);
# sizes, as below.
set -euo pipefail

out=$1 limit_s=$2 begin=$SECONDS
bin=${BIN:?} floors=${FLOORS:?} models=${DATA:?} run=${RUN:-$BIN/fsdp-run} python=${PYTHON:-python3}
block=${BLOCK_MODEL:-llama-3.1-8b} layers=${LAYERS:-8} whole=${WHOLE_MODEL:-llama-3.2-1b}
seq=${SEQ:-4096} batch=${BATCH:-8} steps=${STEPS:-20} peer_micro_batch=${PEER_MICRO_BATCH:-4}
text=$models/text/shakespeare.txt
peer=$(cd "$(dirname "$0")/../bench/peers" && pwd)/llama_torch.py
workload=(--gpus 1 --precision bf16 --recompute none --seq-len "$seq" --global-batch "$batch")

mkdir -p "$out/stack"
rm -f "$out"/{runs.db*,notes.txt,stack.json,whole.json,calibrated.topology,kernel_floors.out}
: >"$out/figures.tsv"
: >"$out/failed.txt"

# ---- what is found, and what it is held against ----

note() {
    echo "$*" | tee -a "$out/notes.txt"
}

# Parts run in subshells, so they count in a file.
failed() {
    echo "$*" >>"$out/failed.txt"
}

failures() {
    wc -l <"$out/failed.txt"
}

# figure NAME VALUE: "null" or nothing is none.
figure() {
    [ -z "$2" ] || [ "$2" = null ] || printf '%s\t%.6g\n' "$1" "$2" >>"$out/figures.tsv"
}

value() {
    awk -F '\t' -v name="$1" '$1 == name { print $2 }' "$out/figures.tsv"
}

# derive NAME FORMULA A B: of two figures, where there are both; a and b in the formula.
derive() {
    local a b
    a=$(value "$3") b=$(value "$4")
    [ -z "$a" ] || [ -z "$b" ] || figure "$1" "$(awk -v a="$a" -v b="$b" "BEGIN { print $2 }")"
}

# What is to be reached: figure, relation, bound, what it is.
targets() {
    cat <<'TABLE'
stack.mfu	>=	0.50	8B-shaped stack: MFU of the dense bf16 peak
stack.over_pytorch	>=	1	8B-shaped stack: tokens/s over those of compiled PyTorch
stack.memory_error	<=	0.02	8B-shaped stack: predicted memory against cudaMemGetInfo
stack.step_error	<=	0.10	8B-shaped stack: step time predicted after calibration
whole.memory_error	<=	0.02	whole model: predicted memory against cudaMemGetInfo
whole.step_error	<=	0.10	whole model: step time predicted after calibration
TABLE
}

# Figure, relation, bound, what, value, PASS | miss | not measured: separated by tabs.
verdicts() {
    awk -F '\t' -v OFS='\t' '
        FILENAME == ARGV[1] { value[$1] = $2; next }
        !($1 in value) { print $0, "null", "not measured"; next }
        { met = $2 == ">=" ? value[$1] >= $3 : value[$1] <= $3
          print $0, value[$1], met ? "PASS" : "miss" }' "$out/figures.tsv" <(targets)
}

# ---- programs ----

# attempt NAME SECONDS COMMAND...: in that time and what is left of all, output to NAME.out and .err.
# Returns 1 when there was no time, 2 when it failed: also by taking all of SECONDS.
attempt() {
    local name=$1 limit=$2 left=$((limit_s - SECONDS + begin)) status=0 start=$SECONDS
    local most=$((limit < left ? limit : left))
    shift 2
    [ "$most" -ge 1 ] || { note "$name: not begun, $limit_s s are over" && return 1; }
    timeout -k 5 "$most" "$@" >"$out/$name.out" 2>"$out/$name.err" </dev/null || status=$?
    if [ "$status" -eq 0 ]; then
        echo "ok   $name ($((SECONDS - start)) s)"
    elif [ $((SECONDS - start)) -ge "$most" ]; then
        note "$name: not done in $most s"
        [ "$most" -eq "$limit" ] || return 1
        return 2
    else
        note "$name: exit $status: $(tail -n 1 "$out/$name.err")"
        return 2
    fi
}

# Of ours: a failure is the script's too.
ours() {
    local status=0
    attempt "$@" || status=$?
    [ "$status" -ne 2 ] || failed "$1"
    return "$status"
}

find_topology() {
    case $device in
    *GH200*) echo isambard-ai ;;
    *H200*) echo one-h200 ;;
    *H100*HBM3*) echo dgx-h100 ;;
    *A100*80GB*) echo dgx-a100-80gb ;;
    *A100*40GB*) echo dgx-a100-40gb ;;
    *GB200*) echo gb200-nvl72 ;;
    *B200*) echo dgx-b200 ;;
    *) echo "bench.sh: no topology is known for '$device': TOPOLOGY=... names one" >&2 && exit 2 ;;
    esac
}

# Its file appears when all of it is measured.
calibrate() {
    ours calibrate 120 "$run" calibrate --device cuda --topology "$nominal" \
        "${CALIBRATE:---quick}" -o "$out/calibrated.topology" || true
}

# What the kernels of a step take by those rows, beside the least that they can: kernel_floors.out.
kernel_floors() {
    [ "$topology" = "$nominal" ] || ours kernel_floors 20 "$floors" "$topology" || true
}

find_measured() {
    topology=$nominal
    [ ! -e "$out/calibrated.topology" ] || topology=$out/calibrated.topology
}

# term FILE TERM FIELD: of a run's report.
term() {
    awk -v term="\"$2\"," -v field="\"$3\"" '
        $1 == "\"term\"" { here = $3 == term }
        here && $1 == field { sub(/,$/, "", $3); print $3; exit }' "$1"
}

# plan_field FILE NAME: the first of that name.
plan_field() {
    sed -n "s/^ *\"$2\" : \"\{0,1\}\([^\",]*\)\"\{0,1\},*$/\1/p" "$1" | head -n 1
}

# By kind of op, of the step that was timed op by op: calls, ms, TFLOP/s.
rates() {
    awk '
        $1 == "\"ops\"" { here = 1 }
        here { gsub(/[",]/, "", $3) }
        here && $1 == "\"kind\"" { kind = $3 }
        here && $1 == "\"count\"" { count = $3 }
        here && $1 == "\"seconds\"" { seconds = $3 }
        here && $1 == "\"flops\"" && seconds > 0 {
            printf "| %s | %d | %.3f | %.1f |\n", kind, count, seconds * 1e3, $3 / seconds / 1e12
        }' "$1"
}

# bench NAME MODEL: a plan is searched and run.
bench() {
    local name=$1 plan=$out/$1.plan report=$out/$1.json id
    local train=("$run" "$plan" --data "$text" --steps "$steps" --lr 1e-4 --db "$out/runs.db" --json)
    ours "$name.search" 20 "$bin/fsdp-plan" search --model "$2" --topology "$topology" \
        "${workload[@]}" -o "$plan" || return 0
    ours "$name.train" 120 "${train[@]}" || return 0
    id=$("$bin/fsdp-report" "$out/runs.db" | sed -n '1s/^run \([0-9]*\) .*/\1/p')
    "$bin/fsdp-report" "$out/runs.db" --run "$id" >"$out/$name.report"
    "$bin/fsdp-report" "$out/runs.db" --run "$id" --json >"$report"
    for field in mfu tokens_per_second step_seconds memory_bytes.total; do
        figure "$name.$field" "$(term "$report" "$field" measured)"
    done
    figure "$name.memory_predicted" "$(term "$report" memory_bytes.total predicted)"
    note "$name:$(grep -m 1 '^  attention ' "$out/$name.train.err" | tr -s ' ')"
    learnt "$name"
    predict "$name" "$2"
    derive "$name.memory_error" "(e = a / b - 1) < 0 ? -e : e" "$name.memory_predicted" "$name.memory_bytes.total"
    derive "$name.step_error" "(e = a / b - 1) < 0 ? -e : e" "$name.step_calibrated" "$name.step_seconds"
    derive "$name.step_error_data_sheet" "(e = a / b - 1) < 0 ? -e : e" "$name.step_data_sheet" "$name.step_seconds"
}

# Step times predicted for the plan that ran, with figures of data sheets and with measured ones.
predict() {
    local name=$1 plan=$out/$1.plan
    [ "$topology" = "$nominal" ] || figure "$name.step_calibrated" "$(plan_field "$plan" step_seconds)"
    ours "$name.data_sheet" 20 "$bin/fsdp-plan" estimate --model "$2" --topology "$nominal" \
        "${workload[@]}" --layout dp_shard=1 --strategy "$(plan_field "$plan" strategy)" \
        --micro-batch "$(plan_field "$plan" micro_batch)" -o "$out/$name.data_sheet.plan" || return 0
    figure "$name.step_data_sheet" "$(plan_field "$out/$name.data_sheet.plan" step_seconds)"
}

# Every line was printed, and the loss fell.
learnt() {
    sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$out/$1.train.out" | awk -v steps="$steps" '
        { loss[NR] = $1 }
        END { exit !(NR == steps && loss[NR] < loss[1]) }' && return
    note "$1: its loss did not fall, see $1.train.out"
    failed "$1"
}

has_pytorch() {
    timeout 60 "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && return
    note "not beside PyTorch: $python has none that finds a GPU"
    return 1
}

# beside_pytorch KIND [OPTION]: the same stack in PyTorch, tokens/s of the median step after three.
beside_pytorch() {
    local kind=$1 tokens=$((batch * seq))
    shift
    attempt "pytorch_$kind" 100 "$python" "$peer" --device cuda --model "$out/stack/config.json" \
        --data "$text" --batch "$batch" --micro-batch "$peer_micro_batch" --seq "$seq" --steps 12 \
        "$@" || return 0
    figure "pytorch_$kind.tokens_per_second" "$(
        sed -n 's/.*"seconds": \([0-9.e+-]*\).*/\1/p' "$out/pytorch_$kind.out" | tail -n +4 | sort -g |
            awk -v tokens="$tokens" '{ s[NR] = $1 } END { print tokens / s[int((NR + 1) / 2)] }'
    )"
    derive stack.over_pytorch 'a / b' stack.tokens_per_second pytorch_compiled.tokens_per_second
}

# ---- what is written ----

write_markdown() {
    printf '# %s\n\n%s, driver %s, %s; %d layers of %s and all of %s, %d x %d tokens a step, bf16\n' \
        "$device" "$date" "$driver" "$version" "$layers" "$block" "$whole" "$batch" "$seq"
    printf '\n| target | | reached | |\n|---|---|---|---|\n'
    verdicts | awk -F '\t' '{ print "| " $4 " | " $2 " " $3 " | " $5 " | " $6 " |" }'
    printf '\n| figure | |\n|---|---|\n'
    awk -F '\t' '{ print "| " $1 " | " $2 " |" }' "$out/figures.tsv"
    for name in stack whole; do
        [ -e "$out/$name.json" ] || continue
        printf '\n%s, the step timed op by op:\n\n| op | calls | ms | TFLOP/s |\n|---|---|---|---|\n' "$name"
        rates "$out/$name.json"
    done
    if [ -s "$out/kernel_floors.out" ]; then
        printf '\nkernels of a step of llama-3.1-8b, beside their floors:\n\n'
        sed 's/^/    /' "$out/kernel_floors.out"
    fi
    [ ! -e "$out/notes.txt" ] || printf '\n%s\n' "$(sed 's/^/- /' "$out/notes.txt")"
}

write_json() {
    printf '{"date": "%s", "device": "%s", "driver": "%s", "version": "%s", "failures": %d,\n "figures": {' \
        "$date" "$device" "$driver" "$version" "$(failures)"
    awk -F '\t' '{ printf "%s\n  \"%s\": %s", (NR > 1 ? "," : ""), $1, $2 }' "$out/figures.tsv"
    printf '},\n "targets": ['
    verdicts | awk -F '\t' '{
        printf "%s\n  {\"figure\": \"%s\", \"relation\": \"%s\", \"bound\": %s, \"value\": %s, \"verdict\": \"%s\"}",
               (NR > 1 ? "," : ""), $1, $2, $3, $5, $6 }'
    printf ']}\n'
}

write_results() {
    write_markdown >"$out/results.new" && mv "$out/results.new" "$out/results.md"
    write_json >"$out/summary.new" && mv "$out/summary.new" "$out/summary.json"
}

# part NAME COMMAND...: also one in which the script itself goes wrong.
part() {
    local name=$1 status=0
    shift
    set +e
    (set -e && "$@")
    status=$?
    set -e
    [ "$status" -eq 0 ] || { note "$name: given up (exit $status)" && failed "$name"; }
    write_results
}

# ---- all, what matters most first ----

IFS=, read -r device driver < <(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
    head -n 1) || true
device=${device:-none} driver=${driver:- none}
driver=${driver# } date=$(date -u +%Y-%m-%dT%H:%M:%SZ) version=$("$run" --version)
nominal=${TOPOLOGY:-$(find_topology)}
find_measured

sed "s/\"num_hidden_layers\": [0-9]*/\"num_hidden_layers\": $layers/" "$models/$block/config.json" \
    >"$out/stack/config.json"
part calibrate calibrate
find_measured
part kernel_floors kernel_floors
part stack bench stack "$out/stack"
part whole bench whole "$models/$whole"
if has_pytorch; then
    part pytorch beside_pytorch compiled --compile
    part pytorch beside_pytorch eager
fi

write_results
verdicts | awk -F '\t' '{ printf "%-12s %s: %s (%s %s)\n", $6, $4, $5, $2, $3 }'
echo "bench.sh: $out/results.md, $(failures) failed, $((SECONDS - begin)) s"
[ "$(failures)" -eq 0 ]
