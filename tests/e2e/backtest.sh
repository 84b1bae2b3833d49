#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154,SC2016 # what common.bash sets; a document's commands
# fsdp-plan backtest: the figures that reports/docs/backtest.md shows for the rows that ship are those
# that it prints, and what is wrong with a table is said in one line.
. "$(dirname "$0")/common.bash"

rows=tests/sim/data/runs.csv doc=reports/docs/backtest.md

"$build/fsdp-plan" backtest "$rows" >"$tmp/printed" || die "backtest $rows failed"
sed -n '/^<!-- printed -->$/,/^<!-- end -->$/p' "$doc" | sed '/^<!--\|^```/d' >"$tmp/shown"
diff "$tmp/shown" "$tmp/printed" >&2 || complain "$doc does not show what backtest prints"

"$build/fsdp-plan" backtest "$rows" --json >"$tmp/json" || die "backtest --json failed"
for key in rows skipped groups total oom_recall regret_mean; do
    grep -q "\"$key\" :" "$tmp/json" || complain "--json has no \"$key\""
done

# refused FILE WORDS: exit status 2 and a line with those words.
refused() {
    local status=0
    "$build/fsdp-plan" backtest "$1" >"$tmp/stdout" 2>"$tmp/stderr" || status=$?
    [ "$status" -eq 2 ] || complain "backtest $1: status $status, not 2"
    [ "$(wc -l <"$tmp/stderr")" -eq 1 ] || complain "backtest $1: not one line on stderr"
    grep -qF -- "$2" "$tmp/stderr" || complain "backtest $1: $(<"$tmp/stderr"), not $2"
    [ ! -s "$tmp/stdout" ] || complain "backtest $1: something on stdout"
}
refused "$tmp/none.csv" none.csv
printf 'id,status\n' >"$tmp/short.csv"
refused "$tmp/short.csv" 'short.csv:1: no column "model"'
head -n 2 "$rows" | sed '2s/,high,/,utmost,/' >"$tmp/trust.csv"
refused "$tmp/trust.csv" 'trust.csv:2: column "trust" = "utmost": must be high, medium, low'

# What a prediction is for is named, and what is not known refused.
"$build/fsdp-plan" estimate -m llama-3.1-8b -t dgx-h100 --layout dp_shard=8 --framework torchtitan \
    --micro-batch 1 -s full_shard --recompute full >"$tmp/estimate" || complain "estimate --framework"
grep -q 'prediction for framework torchtitan' "$tmp/estimate" || complain "estimate names no framework"
# Blocks with experts, halves in parallel: what a framework keeps is found in them too.
for model in qwen3-30b-a3b pythia-1b; do
    "$build/fsdp-plan" estimate -m "$model" -t dgx-h100 --layout dp_shard=64 --framework megatron \
        --micro-batch 1 -s full_shard --recompute full >"$tmp/estimate" || complain "estimate $model"
done
for bad in none megatron; do
    status=0
    topology=dgx-h100
    [ "$bad" = none ] || topology=localhost
    "$build/fsdp-plan" estimate -m tiny-1m -t "$topology" --layout dp_shard=2 --framework "$bad" \
        >"$tmp/stdout" 2>"$tmp/stderr" || status=$?
    [ "$status" -eq 2 ] || complain "--framework $bad: status $status, not 2"
    grep -q "framework = \"$bad\"" "$tmp/stderr" || complain "--framework $bad: $(<"$tmp/stderr")"
done

# What runs today may fit where nothing else does.
echo '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "cpu"}}, "bf16": {"enabled": true}}' >"$tmp/today.json"
status=0
"$build/fsdp-plan" search -m llama-3.1-8b -t dgx-h100 -n 1 --from "$tmp/today.json" \
    >"$tmp/stdout" 2>"$tmp/stderr" || status=$?
[ "$status" -eq 1 ] || complain "8B on one GPU: status $status, not 1"
grep -q '^What runs today fits: 1 rank, full_shard' "$tmp/stdout" || complain "8B: $(<"$tmp/stdout")"

# What other documents show is put there by a script, which knows what is no longer true.
{
    echo text
    printf '```\n$ fsdp-plan estimate -m tiny-1m -t localhost \\\n    --layout dp_shard=2 -o a.plan\n'
    printf '$ fsdp-plan check a.plan\nan older line\n```\n```sh\n$ fsdp-plan kept\n```\n'
} >"$tmp/shown.md"
cp "$tmp/shown.md" "$tmp/older.md"
status=0
scripts/shown.sh --check "$tmp/shown.md" 2>"$tmp/stderr" || status=$?
[ "$status" -eq 1 ] || complain "an older line is taken for true: status $status"
cmp -s "$tmp/shown.md" "$tmp/older.md" || complain "--check wrote"
scripts/shown.sh "$tmp/shown.md" || complain "shown.sh"
scripts/shown.sh --check "$tmp/shown.md" || complain "what was printed is not taken for true"
diff "$tmp/older.md" "$tmp/shown.md" | grep '^[<>]' >"$tmp/changed" || true
[[ $(<"$tmp/changed") == "< an older line"$'\n'"> proven for 2 ranks"* ]] ||
    complain "shown.sh changed: $(<"$tmp/changed")"
scripts/shown.sh --check README.md || complain "README.md"

finish "the documented figures are what is printed"
