#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# Whatever is typed wrongly, and whatever file is damaged: exit status 2, one line on stderr, nothing
# on stdout, nothing written.
. "$(dirname "$0")/common.bash"

mkdir "$tmp/in" "$tmp/out" "$tmp/in/empty_folder"
text=$tmp/in/text model=models/tiny-1m good=$tmp/in/good.plan
checked=0

# refused STATUS PROGRAM ARGUMENT...
refused() {
    local want=$1 program=$2 status=0
    shift 2
    # Leaks are looked for where there is no MPI.
    case $program in
    fsdp-run) timeout 60 "$build/$program" "$@" >"$tmp/stdout" 2>"$tmp/stderr" </dev/null || status=$? ;;
    *) ASAN_OPTIONS=detect_leaks=1 timeout 60 "$build/$program" "$@" \
        >"$tmp/stdout" 2>"$tmp/stderr" </dev/null || status=$? ;;
    esac
    checked=$((checked + 1))
    [ "$status" -eq "$want" ] || complain "$program $*: status $status, not $want"
    [ "$(wc -l <"$tmp/stderr")" -eq 1 ] ||
        complain "$program $*: $(wc -l <"$tmp/stderr") lines on stderr: $(head -n 3 "$tmp/stderr")"
    [[ $(<"$tmp/stderr") == "$program: "* ]] || complain "$program $*: does not say who complains"
    [ ! -s "$tmp/stdout" ] || complain "$program $*: stdout has $(head -n 1 "$tmp/stdout")"
    [ -z "$(ls -A "$tmp/out")" ] || complain "$program $*: wrote $(ls -A "$tmp/out")"
    rm -rf "$tmp/out"
    mkdir "$tmp/out"
}

# What is allowed is said.
allowed() {
    grep -qE 'must be|allowed: ' "$tmp/stderr" || complain "$*: not what is allowed: $(<"$tmp/stderr")"
}

search() { refused 2 fsdp-plan search --model "$model" --gpus 2 -o "$tmp/out/plan" "$@"; }
train() { refused 2 fsdp-run "$good" --data "$text" --db "$tmp/out/db" "$@"; }
report() { refused 2 fsdp-report "$@"; }

# ---- what files there are ----

make_text "$text"
plan "$good" --gpus 2 --global-batch 4 --seq-len 32 --strategy full_shard
: >"$tmp/in/empty"
head -c 3000 /dev/urandom >"$tmp/in/noise"
printf 'caf\xe9 in Latin-1\n' >"$tmp/in/latin1"
echo '{"model_type": "llama"}' >"$tmp/in/part.json"
printf '[cluster]\nname = x\n' >"$tmp/in/part.topology"
echo 'not a database, but long enough to have a header of 100 bytes, if it were one: ..........' \
    >"$tmp/in/foreign.db"
cp "$build/fsdp-plan" "$tmp/in/binary"
damaged=("$tmp/in/missing" "$tmp/in/empty_folder" "$tmp/in/empty" "$tmp/in/noise"
    "$tmp/in/part.json" "$tmp/in/part.topology" "$tmp/in/binary" /dev/null "")
if [ "$(id -u)" -ne 0 ]; then
    cp "$good" "$tmp/in/unreadable"
    chmod 000 "$tmp/in/unreadable"
    damaged+=("$tmp/in/unreadable")
fi

# ---- fsdp-plan search, estimate ----

# --help shows what to type.
for verb in search estimate explain check trace export backtest model topology "topology import"; do
    # shellcheck disable=SC2086 # two words are two arguments
    "$build/fsdp-plan" $verb --help >"$tmp/help" || complain "$verb --help: status $?"
    grep -qF "  fsdp-plan $verb [OPTION" "$tmp/help" || complain "$verb --help: $(head -n 2 "$tmp/help")"
done

for file in "${damaged[@]}"; do
    refused 2 fsdp-plan search --model "$file" -o "$tmp/out/plan"
    refused 2 fsdp-plan search --model "$model" --topology "$file" -o "$tmp/out/plan"
    refused 2 fsdp-plan model "$file"
    refused 2 fsdp-plan topology "$file"
    for verb in explain check; do
        refused 2 fsdp-plan "$verb" "$file"
        refused 2 fsdp-plan "$verb" --json "$file"
    done
    refused 2 fsdp-plan trace "$file" -o "$tmp/out/trace"
    refused 2 fsdp-run "$file" --data "$text"
    report "$file"
done

for number in 0 -1 1.5 x "" 999999999999 99999999999999999999; do
    for option in gpus seq-len global-batch micro-batch top virtual-stages; do
        search "--$option" "$number"
        allowed "--$option $number"
    done
done
# Nothing is no list and no file.
for option in fix offload from output db recompute schedule sort framework precision recipe optimizer; do
    search "--$option" ""
    allowed "--$option of nothing"
done
search --precision fp12
search --precision fp32 --recipe zero
search --recipe megatrom
search --precision fp8
search --precision fp16 --recipe fp32
search --fix gather=fp4
search --topology dgx-a100-80gb --precision fp8
for offload in optimizer optimizer=tape gradients=host optimizer=host parameters=nvme; do
    search --offload "$offload" # localhost is a CPU: its memory is the host's
done
search --topology dgx-h100 --offload optimizer=nvme # states none
search --strategy sometimes
search --strategy ""
search --optimizer adam8
for recompute in some none:1 full: full:x full:1/ full:1:2; do
    search --recompute "$recompute"
done
search --recompute full:1/2/3 --fix pp=2
# tiny-1m has 5 layers.
for recompute in full:6 selective:99 full:6/1; do
    search --recompute "$recompute"
    allowed "--recompute $recompute"
done
search --fix pp=2,recompute=full:4
allowed "--fix recompute=full:4 of 3 and 2 layers"
search --recompute full:3/3
search --fix stages=4:1 --recompute full:4/2
search --schedule dualpipe
search --sort cost
search --frobnicate
search --layout dp_shard=2
search stray
search --model
for fix in dp_shard dp_shard= dp_shard=0 dp_shard=-1 dp_shard=x dp_shard=2,dp_shrad=1 colour=red \
    form=round accumulate=never prefetch=-1 prefetch=x live_units=0 prefetch=2,live_units=1 \
    keep=everything keep=layers.x keep=layers.3-1 unit=root unit=unifrm unit=root:x unit=layers.0:no_shard:x \
    micro_batch=0 recompute=some strategy=x schedule=x virtual_stages=0 stages=3:x stages= \
    context=ulysses sequence=maybe gradient_dtype=fp31 reduce_dtype=bf16 reduce_dtype=fp8; do
    search --fix "$fix"
    grep -qE 'must be|allowed: |needs at least|takes' "$tmp/stderr" || complain "--fix $fix: not what is allowed"
done
search --precision fp16 --fix reduce_dtype=bf16
search --precision bf16 --fix gradient_dtype=fp16
refused 2 fsdp-plan search --model "$model" -o "$tmp/in/empty_folder"
refused 2 fsdp-plan search --model "$model" -o "$tmp/in/missing/plan"
search --db "$tmp/in/foreign.db"
search --db "$tmp/in/empty_folder"
search --db "$tmp/in/missing/db"

refused 2 fsdp-plan estimate --model "$model" -o "$tmp/out/plan"
for layout in "" "," dp=2 dp_shard dp_shard=0 dp_shard=x ep=0 ep=x form=flat; do
    refused 2 fsdp-plan estimate --model "$model" --layout "$layout" -o "$tmp/out/plan"
done
refused 2 fsdp-plan estimate --model "$model" --layout dp_shard=2 --gpus 3 -o "$tmp/out/plan"
# What is said twice is not the last of the two, and a world that no number holds is none.
refused 2 fsdp-plan estimate --model "$model" --layout dp_shard=2,dp_shard=4 -o "$tmp/out/plan"
# Names that other programs have for them.
for axis in dp FSDP zero; do
    refused 2 fsdp-plan estimate --model "$model" --layout "$axis=2" -o "$tmp/out/plan"
    grep -q "dp_shard shards" "$tmp/stderr" || complain "--layout $axis=2: $(head -n 1 "$tmp/stderr")"
done
refused 2 fsdp-plan search --model "$model" --topology dgx-h100 --framework trl -o "$tmp/out/plan"
grep -q "deepspeed-liger; or PyTorch's FSDP" "$tmp/stderr" || complain "--framework trl: $(head -n 1 "$tmp/stderr")"
refused 2 fsdp-plan search --model "$model" --strategy zero3 -o "$tmp/out/plan"
grep -q "full_shard (ZeRO-3)" "$tmp/stderr" || complain "--strategy zero3: $(head -n 1 "$tmp/stderr")"
refused 2 fsdp-plan estimate --model "$model" --layout dp_shard=2 --fix dp_shard=4 -o "$tmp/out/plan"
refused 2 fsdp-plan estimate --model "$model" --layout dp_shard=65536,dp_replicate=65536 -o "$tmp/out/plan"
search --fix pp=1,pp=2
search --topology dgx-h100 --offload optimizer=host,optimizer=device
search --expert-imbalance 2 # of a model without experts
for imbalance in 0.99 4.01 0 -1 nan inf x ""; do
    refused 2 fsdp-plan estimate --model mixtral-8x7b --topology dgx-h100 --layout dp_shard=8,ep=4 \
        --expert-imbalance "$imbalance" -o "$tmp/out/plan"
done
# A full disk is said. Only the shell opens the device: nothing may take its place.
status=0
"$build/fsdp-plan" topology localhost >/dev/full 2>"$tmp/stderr" || status=$?
[ "$status" -eq 3 ] || complain "a full stdout: status $status: $(<"$tmp/stderr")"
# A plan may come through a pipe.
"$build/fsdp-plan" estimate --model "$model" --layout dp_shard=2 --json |
    "$build/fsdp-plan" check /dev/stdin >"$tmp/stdout" || complain "check /dev/stdin: status $?"
# A plan may go where its table goes: both are there, whole.
"$build/fsdp-plan" estimate --model "$model" --layout dp_shard=2 -o /dev/stdout >"$tmp/both"
grep -q '"format" : "fsdp-plan"' "$tmp/both" || complain "-o /dev/stdout: no plan"
grep -q "^memory of a rank" "$tmp/both" || complain "-o /dev/stdout: no table"
# A core with a rate for bf16 alone has none for fp32, which is what it would compute in.
sed 's/^fp32 = .*/bf16 = 50 GFLOP\/s/' topologies/localhost >"$tmp/in/bf16.topology"
refused 2 fsdp-plan estimate --model "$model" --topology "$tmp/in/bf16.topology" \
    --layout dp_shard=2 --precision fp32 -o "$tmp/out/plan"
# What can only be counted.
refused 2 fsdp-plan search --model tests/sim/data/models/nemotron-h-56b.json --topology dgx-h100 \
    -o "$tmp/out/plan"
# Understood, but illegal.
refused 1 fsdp-plan estimate --model "$model" --layout dp_shard=2 --strategy no_shard \
    -o "$tmp/out/plan"
for layout in pp=6 cp=3 tp=3 dp_shard=2,ep=2; do # 5 layers; 2 cp divides no 256 tokens; 4 heads; none
    refused 1 fsdp-plan estimate --model "$model" --layout "$layout" -o "$tmp/out/plan"
done
refused 1 fsdp-plan estimate --model "$model" --layout pp=2 --fix stages=1:1 -o "$tmp/out/plan"
refused 1 fsdp-plan estimate --model "$model" --layout dp_shard=2 --schedule gpipe \
    -o "$tmp/out/plan"
refused 1 fsdp-plan estimate --model "$model" --layout dp_shard=2 --global-batch 3 \
    -o "$tmp/out/plan"

# ---- fsdp-plan, the other verbs ----

refused 2 fsdp-plan serach
refused 2 fsdp-plan --frobnicate
for verb in explain check trace model topology; do
    refused 2 fsdp-plan "$verb"
    refused 2 fsdp-plan "$verb" --frobnicate
    refused 2 fsdp-plan "$verb" "$good" "$good"
done
refused 2 fsdp-plan trace "$good"
refused 2 fsdp-plan trace "$good" -o "$tmp/in/missing/trace"
refused 2 fsdp-plan trace "$good" -o "$tmp/in/empty_folder"

# ---- fsdp-run ----

# Planned, not trained.
timeout 60 "$build/fsdp-plan" estimate --model pythia-70m --layout dp_shard=2 --seq-len 64 \
    -o "$tmp/in/planned" >/dev/null
refused 2 fsdp-run "$tmp/in/planned" --data "$text"
refused 1 fsdp-plan export "$tmp/in/planned" --to megatron

refused 2 fsdp-run
refused 2 fsdp-run "$good"
refused 2 fsdp-run --data "$text"
# What is planned only is refused by name.
for option in "--precision fp8" "--precision fp16" "--optimizer adam8bit"; do
    # shellcheck disable=SC2086 # an option and its value
    plan "$tmp/in/only.plan" --topology dgx-h100 --gpus 2 --global-batch 4 $option
    refused 2 fsdp-run "$tmp/in/only.plan" --data "$text"
    [[ $(<"$tmp/stderr") == *"\"${option##*[ =]}\""*"planned only"* ]] ||
        complain "fsdp-run of $option: $(<"$tmp/stderr")"
done
# Tiers: of nvme, where; cxl, never.
{
    cat topologies/localhost
    for memory in host cxl nvme; do
        printf '\n[memory %s]\ncapacity = 1 GB\nbandwidth = 1 GB/s\n' "$memory"
    done
} >"$tmp/in/tiers"
for tier in cxl nvme; do
    plan "$tmp/in/$tier.plan" --topology "$tmp/in/tiers" --gpus 2 --global-batch 4 \
        --fix dp_shard=2 --strategy full_shard --offload "optimizer=host,parameters=$tier"
    refused 2 fsdp-run "$tmp/in/$tier.plan" --data "$text"
done
[[ $(<"$tmp/stderr") == *"--nvme DIR is missing"* ]] || complain "nvme: $(<"$tmp/stderr")"
refused 2 fsdp-run "$tmp/in/cxl.plan" --data "$text" --nvme "$tmp/out"
[[ $(<"$tmp/stderr") == *'"cxl"}: cxl is planned only'* ]] || complain "cxl: $(<"$tmp/stderr")"
refused 2 fsdp-run "$tmp/in/nvme.plan" --data "$text" --nvme /proc
train --nvme "$tmp/in"
train --rounding up
train --rounding stochastic # an fp32 plan
plan "$tmp/in/window.plan" --model mistral-7b --topology dgx-h100 --gpus 16
[[ $(<"$tmp/plan.out") == *"can't train this: field \"workload.seq_len\" = 8192"* ]] ||
    complain "a window is not said beside the plan: $(<"$tmp/plan.out")"
refused 2 fsdp-run "$tmp/in/window.plan" --data "$text"
train "$good"
train --frobnicate
for number in 0 -1 1.5 x "" 99999999999999999999; do
    train --steps "$number"
    allowed "--steps $number"
    train --lr-schedule cosine --lr-steps "$number"
    allowed "--lr-steps $number"
done
for number in -1 1.5 x "" 99999999999999999999; do
    for option in seed log-every check-seed watchdog "lr-schedule cosine --lr-steps 5 --warmup"; do
        # shellcheck disable=SC2086 # the last is several
        train --$option "$number"
        allowed "--$option $number"
    done
done
for number in -1 x "" 1x nan inf; do
    for option in lr clip-norm; do
        train "--$option" "$number"
        allowed "--$option $number"
    done
done
train --lr 0
train --watchdog 86401
train --device cuda
train --device gpu
train --lr-schedule linear
train --lr-schedule cosine
train --lr-steps 5
train --warmup 5
train --lr-schedule cosine --lr-steps 5 --warmup 5
for file in "$tmp/in/missing" "$tmp/in/empty_folder" "$tmp/in/empty" "$tmp/in/latin1" \
    "$tmp/in/noise" /dev/null; do
    refused 2 fsdp-run "$good" --data "$file" --db "$tmp/out/db"
done
for file in "$tmp/in/foreign.db" "$tmp/in/empty_folder" "$tmp/in/missing/db" "$good"; do
    refused 2 fsdp-run "$good" --data "$text" --db "$file"
done
refused 2 fsdp-run calibrate
refused 2 fsdp-run calibrate --frobnicate -o "$tmp/out/topology"
refused 2 fsdp-run calibrate stray -o "$tmp/out/topology"
# A minute of measuring begins only where its result can be kept.
for file in "" "$tmp/in/empty_folder" "$tmp/in/missing/topology"; do
    refused 2 fsdp-run calibrate -o "$file"
    allowed "calibrate -o $file"
done
refused 2 fsdp-run calibrate --nvme "" -o "$tmp/out/topology"
for option in db nvme data; do
    train "--$option" ""
    allowed "--$option of nothing"
done
OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2 refused 2 fsdp-run "$good" --data "$text"

# ---- damaged plans ----

bytes=$(wc -c <"$good")
for ((at = 1; at < bytes - 2; at += bytes / 17)); do
    head -c "$at" "$good" >"$tmp/in/cut"
    refused 2 fsdp-run "$tmp/in/cut" --data "$text"
    refused 2 fsdp-plan check "$tmp/in/cut"
done
# edited NAME SED: one field of a good plan.
edited() {
    sed "$2" "$good" >"$tmp/in/edited"
    ! cmp -s "$good" "$tmp/in/edited" || complain "the edit of $1 changes nothing"
    refused 2 fsdp-run "$tmp/in/edited" --data "$text"
    refused 2 fsdp-plan check "$tmp/in/edited"
}
edited hash 's/\("hash"[^"]*"\)......../\100000000/'
edited version 's/\("version"[^0-9]*\)1/\12/'
edited format 's/"fsdp-plan"/"fsdp-plans"/'
edited live_units 's/\("live_units"[^0-9]*\)[0-9]*/\177/'
edited prefetch 's/\("prefetch"[^0-9]*\)[0-9]*/\177/'
edited strategy 's/\("strategy"[^"]*"\)[a-z_]*/\1sometimes/'
edited dp_shard 's/\("dp_shard"[^0-9]*\)[0-9]*/\13/'
edited hidden_size 's/\("hidden_size"[^0-9]*\)[0-9]*/\164/'
edited threads 's/\("threads"[^0-9]*\)[0-9]*/\10/'
edited device 's/"cpu"/"tpu"/'
edited quotes "s/\"/'/"

# ---- fsdp-report ----

timeout 60 "$build/fsdp-run" "$good" --data "$text" --steps 3 --db "$tmp/in/good.db" >/dev/null
report
report --frobnicate "$tmp/in/good.db"
report "$tmp/in/good.db" "$tmp/in/good.db"
report "$tmp/in/foreign.db"
report "$good"
report "$tmp/in/good.db" --run 99
for number in -1 0 x "" 99999999999999999999; do
    report "$tmp/in/good.db" --run "$number"
    allowed "--run $number"
done
report "$tmp/in/good.db" --png
report "$tmp/in/good.db" --html "$text"
for option in html calibrate; do
    report "$tmp/in/good.db" "--$option" ""
    allowed "--$option of nothing"
done

# A topology file that can't be calibrated stays as it is.
timeout 60 "$build/fsdp-plan" topology dgx-h100 >"$tmp/in/gpus.topology"
timeout 60 "$build/fsdp-plan" topology localhost >"$tmp/in/here.topology"
cksum "$tmp/in/"* 2>/dev/null >"$tmp/before"
for file in "${damaged[@]}" localhost "$tmp/in/gpus.topology" "$good" "$text"; do
    report "$tmp/in/good.db" --calibrate "$file"
done
report "$tmp/in/good.db" --run 99 --calibrate "$tmp/in/here.topology"
report "$tmp/in/foreign.db" --calibrate "$tmp/in/here.topology"
cksum "$tmp/in/"* 2>/dev/null | cmp -s - "$tmp/before" || complain "--calibrate: a file has changed"
head -c 5000 "$tmp/in/good.db" >"$tmp/in/cut.db"
refused 3 fsdp-report "$tmp/in/cut.db"

finish "$checked wrong commands refused"
