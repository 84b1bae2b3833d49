#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# The loop from end to end: search, run on 1, 2 and 4 ranks, report.  What was counted and touched is
# what was predicted, to the byte; every layout trains the same model; the store can be read while
# it is written.
. "$(dirname "$0")/common.bash"

text=$tmp/text db=$tmp/runs.db
make_text "$text"

# rows DB: "run rank term predicted measured" of every term; an empty store has none.
rows() {
    timeout 60 "$build/fsdp-report" "$1" --json | awk -F'[:,]' '
        function value(text) { gsub(/[ "]/, "", text); return text }
        /"id"/ { run = value($2) }
        /"rank"/ { rank = value($2) }
        /"term"/ { term = value($2) }
        /"predicted"/ { predicted = value($2) }
        /"measured"/ && term != "" { print run, rank, term, predicted, value($2); term = "" }'
}

# statuses DB: of all runs, a line each.
statuses() {
    timeout 60 "$build/fsdp-report" "$1" --json | sed -n 's/.*"status" *: *"\([^"]*\)".*/\1/p'
}

# train PLAN OPTION...: losses and norms of 4 steps.
train() {
    timeout 120 "$build/fsdp-run" "$1" --data "$text" --steps 4 --json "${@:2}" |
        sed 's/.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2/' || die "fsdp-run $*: status $?"
}

# ---- plans: the best of 1, 2 and 4 ranks, and layouts unlike them ----

common=(--global-batch 8 --seq-len 64)
plan "$tmp/1.plan" --gpus 1 "${common[@]}"
plan "$tmp/2.plan" --gpus 2 "${common[@]}"
plan "$tmp/4.plan" --gpus 4 "${common[@]}"
plan "$tmp/2-ddp.plan" --gpus 2 "${common[@]}" --strategy no_shard
plan "$tmp/4-hybrid.plan" --gpus 4 "${common[@]}" --strategy hybrid_shard \
    --fix dp_replicate=2,form=flat --micro-batch 1 --recompute full
plan "$tmp/4-full.plan" --gpus 4 "${common[@]}" --strategy full_shard --micro-batch 1 \
    --fix unit=root:shard_grad_op,accumulate=unsharded
plans=(1 2 4 2-ddp 4-hybrid 4-full)
for name in "${plans[@]}"; do
    timeout 60 "$build/fsdp-plan" check "$tmp/$name.plan" >/dev/null || complain "$name is not proven"
done

# ---- runs ----

for name in "${plans[@]}"; do
    train "$tmp/$name.plan" --db "$db" >"$tmp/$name.losses"
    [ "$(wc -l <"$tmp/$name.losses")" -eq 4 ] || complain "$name: not 4 lines of JSON"
done
for name in "${plans[@]}"; do
    paste "$tmp/1.losses" "$tmp/$name.losses" | awk '
        function far(a, b) { return a - b > 1e-4 * b || b - a > 1e-4 * b }
        far($3, $1) || far($4, $2) { exit 1 }' || complain "$name trains another model than 1 rank"
done
train "$tmp/4-hybrid.plan" >"$tmp/again.losses"
cmp -s "$tmp/4-hybrid.losses" "$tmp/again.losses" || complain "two runs have other losses"
train "$tmp/2.plan" --seed 2 >"$tmp/seed.losses"
! cmp -s "$tmp/2.losses" "$tmp/seed.losses" || complain "another seed has the same losses"

# A precision that localhost states no rate for: its lines are JSON too.
plan "$tmp/2-bf16.plan" --gpus 2 "${common[@]}" --precision bf16
timeout 120 "$build/fsdp-run" "$tmp/2-bf16.plan" --data "$text" --steps 2 --json >"$tmp/bf16.json" ||
    complain "fsdp-run in bf16: status $?"
[ "$(grep -cE '"mfu": [0-9.e-]+}$' "$tmp/bf16.json")" -eq 2 ] ||
    complain "in bf16: $(head -n 1 "$tmp/bf16.json")"
# Parameters that are rounded by chance are others from the first update on.
timeout 120 "$build/fsdp-run" "$tmp/2-bf16.plan" --data "$text" --steps 2 --json --rounding stochastic \
    >"$tmp/chance.json" 2>"$tmp/chance.err" || complain "--rounding stochastic: status $?"
grep -q '^  run .*stochastic rounding' "$tmp/chance.err" || complain "rounding: $(<"$tmp/chance.err")"
cut -d , -f 2 "$tmp/bf16.json" | diff - <(cut -d , -f 2 "$tmp/chance.json") >"$tmp/other.losses" || true
grep -q '^2c2$' "$tmp/other.losses" || complain "rounding: $(<"$tmp/other.losses")"

# ---- state in other tiers, weights gathered as fp8 codes ----

{
    timeout 60 "$build/fsdp-plan" topology localhost
    printf '%s\n' '[memory host]' 'capacity=8 GB' 'bandwidth=5 GB/s' 'latency=1 us' \
        '[memory nvme]' 'capacity=100 GB' 'bandwidth=1 GB/s' 'latency=100 us'
} >"$tmp/tiers.topology"
disk=$(mktemp -d -p "$build")
trap 'rm -rf "$disk"; clean_up' EXIT
sharded=(--gpus 2 "${common[@]}" --strategy full_shard --micro-batch 4)
for fix in dp_shard=2 dp_shard=2,gather=fp8; do
    plan "$tmp/2-$fix.plan" "${sharded[@]}" --fix "$fix"
    train "$tmp/2-$fix.plan" --db "$tmp/codes.db" >"$tmp/2-$fix.losses"
done
for offload in optimizer=nvme,parameters=host optimizer=host,parameters=nvme; do
    plan "$tmp/tiers.plan" --topology "$tmp/tiers.topology" "${sharded[@]}" --fix dp_shard=2 \
        --offload "$offload"
    train "$tmp/tiers.plan" --nvme "$disk" --db "$tmp/tiers.db" >"$tmp/tiers.losses"
    cmp -s "$tmp/2-dp_shard=2.losses" "$tmp/tiers.losses" || complain "$offload: other losses"
done
[ -z "$(ls -A "$disk")" ] || complain "nvme left $(ls -A "$disk")"
rows "$tmp/tiers.db" | awk '
    $3 ~ /^arena_bytes\.(host|nvme)$/ { n++; if (!($5 >= $4 && $4 > 0)) bad = 1 }
    END { exit bad || n != 8 }' || complain "tiers: $(rows "$tmp/tiers.db" | grep arena_bytes)"
paste "$tmp/2-dp_shard=2.losses" "$tmp/2-dp_shard=2,gather=fp8.losses" | awk '
    function far(a, b) { return a - b > 0.02 * b || b - a > 0.02 * b }
    far($3, $1) { exit 1 } $3 != $1 { other = 1 } END { exit !other }' ||
    complain "fp8 codes: $(paste "$tmp"/2-dp_shard*.losses)"
rows "$tmp/codes.db" | awk '
    $3 == "communication_bytes.all_gather" { bytes[$1] += $5; if ($4 != $5) exit 1 }
    END { exit !(bytes[2] < 0.5 * bytes[1] && bytes[2] > 0.25 * bytes[1]) }' ||
    complain "fp8 codes: $(rows "$tmp/codes.db" | grep all_gather)"

# ---- predicted and measured ----

rows "$db" >"$tmp/rows"
[ "$(statuses "$db" | sort | uniq -c | xargs)" = "${#plans[@]} done" ] ||
    complain "statuses: $(statuses "$db" | xargs)"
awk '
    $3 ~ /^communication_bytes\./ { exact++ }
    $3 ~ /^memory_bytes\.(parameters|gradients|master|optimizer)$/ { exact++; state++ }
    $3 ~ /^(communication_bytes\.|memory_bytes\.(parameters|gradients|master|optimizer)$)/ {
        if ($5 == "null" || $4 != $5) { print "run", $1, "rank", $2, $3, $4, "measured", $5; bad = 1 }
    }
    $3 ~ /^communication_bytes\./ && $4 > 0 { moved++ }
    $3 ~ /^communication_bytes\./ { bytes[$1, $2, substr($3, 21)] = $5 }
    $3 ~ /^communication_seconds\./ && bytes[$1, $2, substr($3, 23)] > 0 && !($4 > 0 && $5 > 0) {
        print "run", $1, "rank", $2, $3, $4, "measured", $5; bad = 1 }
    $3 == "arena_bytes.device" && !($5 <= $4 && $5 >= 0.98 * $4) {
        print "run", $1, "rank", $2, $3, $4, "measured", $5; bad = 1 }
    $3 == "memory_bytes.total" && !($5 > 0) { print "no total of run", $1; bad = 1 }
    $3 == "step_seconds" && !($5 > 0) { print "no time of run", $1; bad = 1 }
    END {
        # 1 + 2 + 4 + 2 + 4 + 4 ranks, 5 kinds of volume, 4 state terms.
        if (exact != 17 * 9) { print exact, "exact terms instead of", 17 * 9; bad = 1 }
        if (moved < 16) { print moved, "kinds of volume that are not 0"; bad = 1 }
        exit bad
    }' "$tmp/rows" >"$tmp/bad" || complain "$(<"$tmp/bad")"

# Tables, pictures, explanations.
timeout 60 "$build/fsdp-report" "$db" >"$tmp/table" || complain "fsdp-report"
timeout 120 "$build/fsdp-report" "$db" --html "$tmp/html" >/dev/null || complain "fsdp-report --html"
timeout 60 "$build/fsdp-plan" explain "$tmp/4-full.plan" >"$tmp/explained" || complain "explain"
grep -q "optimiser step .* GB\|optimiser step .* MB" "$tmp/explained" || complain "explain: what the optimiser needs"
grep -q "recompute full .* tokens/s" "$tmp/explained" || complain "explain: what one change gains"
grep -q "faster with more memory\|with more memory" "$tmp/explained" || complain "explain: what more memory gains"
# The same for programs; what is not proven is printed too, and is exit status 1.
"$build/fsdp-plan" explain --json "$tmp/4-full.plan" >"$tmp/explained.json" || complain "explain --json"
grep -q '"speed_change"' "$tmp/explained.json" || complain "explain --json: what one change gains"
"$build/fsdp-plan" check --json "$tmp/4-full.plan" | grep -q '"proven" : true' || complain "check --json"
"$build/fsdp-plan" estimate -m llama-3.1-70b -t dgx-h100 --layout dp_shard=8 -o "$tmp/large.plan" >/dev/null &&
    complain "estimate of what does not fit: status 0"
status=0
"$build/fsdp-plan" check --json "$tmp/large.plan" >"$tmp/unproven" || status=$?
[ "$status" -eq 1 ] || complain "check --json of what does not fit: status $status"
grep -q '"proven" : false' "$tmp/unproven" || complain "check --json of what does not fit: $(<"$tmp/unproven")"
# Where cuDNN's attention and ours were measured, explain says what ours would cost.
{
    cat topologies/dgx-h100
    printf '[measured gemm]\nbf16/busy1/threads1/4096x4096x4096 = 700 TFLOP/s\n[measured ops]\n'
    for op in attention attention_backward; do
        printf '%s/bf16/busy1/threads1/8192x128 = 200 TFLOP/s\n' "$op"
        printf '%s_cudnn/bf16/busy1/threads1/8192x128 = 400 TFLOP/s\n' "$op"
    done
} >"$tmp/measured.topology"
"$build/fsdp-plan" estimate -m llama-3.1-8b -t "$tmp/measured.topology" --layout dp_shard=8 -s full_shard \
    --micro-batch 1 -o "$tmp/cudnn.plan" >"$tmp/stdout" || complain "estimate with cuDNN's rows"
"$build/fsdp-plan" explain "$tmp/cudnn.plan" >"$tmp/own" || complain "explain with cuDNN's rows"
grep -q "attention own .* -[1-9][0-9.]*% tokens/s" "$tmp/own" || complain "explain: --attention own"
grep -q "attention own" "$tmp/explained" && complain "explain: --attention own where nothing was measured"
timeout 60 "$build/fsdp-plan" trace "$tmp/4-full.plan" -o "$tmp/trace" || complain "trace"
for file in table html/index.html explained trace; do
    [ -s "$tmp/$file" ] || complain "$file is empty"
done

# ---- what ran feeds the next prediction ----

here=$tmp/here.topology
timeout 60 "$build/fsdp-plan" topology localhost >"$here"
# predictions RUN: the step of that layout, before the file was calibrated with it and after.
predictions() {
    timeout 60 "$build/fsdp-report" "$db" --run "$1" --calibrate "$here" --json |
        sed -n 's/.*"predicted\(_before\)*" : \([0-9.e+-]*\).*/\2/p' | xargs
}
for run in 1 2 3 4 5 6; do
    read -r before after <<<"$(predictions "$run")"
    cp "$here" "$tmp/once.topology"
    [ "$before" != "$after" ] || complain "run $run teaches nothing: $before s before and after"
    [ "$(predictions "$run")" = "$after $after" ] || complain "run $run twice: another prediction"
    cmp -s "$here" "$tmp/once.topology" || complain "run $run twice: another file"
done
[ "$(grep -c 'source=run 1 .*; run 6 of runs.db' "$here")" -eq 1 ] || complain "the runs are not named"
grep -q '^all_gather/fp32/ranks2/' "$here" || complain "no row of a collective"
timeout 60 "$build/fsdp-plan" topology "$here" >"$tmp/again.topology" || complain "not read back"
grep -q '^fp32/busy' "$tmp/again.topology" || complain "no row is read back"

# ---- what does not fit says what would ----

status=0
timeout 120 "$build/fsdp-plan" search --model llama-3.1-70b --topology dgx-h100 --gpus 8 \
    >"$tmp/large" || status=$?
[ "$status" -eq 1 ] || complain "70B on 8 GPUs: status $status"
for line in "smallest number of GPUs that fits is 16" "--offload optimizer=host"; do
    grep -q -- "$line" "$tmp/large" || complain "70B on 8 GPUs: nothing says \"$line\""
done

# ---- check mode ----

# losses_of OPTION...: of the plan of 2 ranks.
losses_of() {
    timeout 120 "$build/fsdp-run" "$tmp/2.plan" --data "$text" --steps 4 --json "$@" 2>"$tmp/check.err" |
        sed 's/.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2/' ||
        complain "fsdp-run $*: $(<"$tmp/check.err")"
}
for options in --check --check-seed=7 --no-overlap "--no-overlap --check-seed=8"; do
    read -ra words <<<"$options"
    losses_of "${words[@]}" >"$tmp/check.losses"
    cmp -s "$tmp/2.losses" "$tmp/check.losses" || complain "$options: other losses"
done
grep -q 'delays of seed 8 ' "$tmp/check.err" || complain "the seed is not said: $(<"$tmp/check.err")"

# ---- a store that is being written ----

live=$tmp/live.db
steps_so_far() {
    [ -s "$live" ] && timeout 20 "$build/fsdp-report" "$live" --json >"$tmp/live.json" 2>"$tmp/live.err" &&
        grep -q '"status" : "running"' "$tmp/live.json"
}
timeout 120 "$build/fsdp-run" "$tmp/2.plan" --data "$text" --steps 100000 --db "$live" >/dev/null &
runner=$!
wait_for 30 steps_so_far || complain "the store can't be read while it is written: $(cat "$tmp/live.err")"
for _ in 1 2 3 4 5; do
    statuses "$live" >/dev/null || complain "the store can't be read while it is written"
done
kill -TERM "$runner"
wait "$runner" || complain "status $? after SIGTERM"
[ "$(statuses "$live")" = stopped ] || complain "status $(statuses "$live") instead of stopped"

# ---- joined ----

mpirun=(timeout 120 mpirun --oversubscribe --bind-to none)
"${mpirun[@]}" -np 2 "$build/fsdp-run" "$tmp/2.plan" --data "$text" --steps 4 --json 2>"$tmp/joined.err" |
    sed 's/.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2/' >"$tmp/joined.losses" ||
    complain "under mpirun: $(<"$tmp/joined.err")"
cmp -s "$tmp/2.losses" "$tmp/joined.losses" || complain "under mpirun: other losses"
status=0
"${mpirun[@]}" -np 3 "$build/fsdp-run" "$tmp/2.plan" --data "$text" --db "$tmp/refused.db" \
    >"$tmp/refused.out" 2>"$tmp/refused.err" || status=$?
[ "$status" -eq 2 ] || complain "3 ranks for a plan of 2: status $status, not 2"
[ "$(grep -c '^fsdp-run: ' "$tmp/refused.err")" -eq 1 ] ||
    complain "3 ranks for a plan of 2: $(<"$tmp/refused.err")"
[ ! -s "$tmp/refused.out" ] || complain "3 ranks for a plan of 2: $(<"$tmp/refused.out")"
[ ! -e "$tmp/refused.db" ] || complain "3 ranks for a plan of 2: a store was made"

finish "${#plans[@]} layouts ran as predicted"
