#!/usr/bin/env bash
# `make demo`: calibrate this machine, plan a tiny model for it, train it in the best layout and in
# others, and put predicted beside measured.  Everything it makes is in build/demo/.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-tiny-1m}
data=${DATA:-$(find models/text -name '*.txt' | sort | head -n 1)}
steps=${STEPS:-30}
out=build/demo
topology=$out/localhost.topology
store=$out/runs.db
workload=(--model "$model" --topology "$topology" --global-batch 8 --seq-len 128)

# Layouts to try besides the best one: axes, strategy.
others=(
    "dp_shard=1 no_shard"
    "dp_replicate=2 no_shard"
    "dp_shard=2 shard_optimizer"
    "dp_shard=2 shard_grad_op"
    "dp_shard=2 full_shard"
    "dp_shard=4 full_shard"
    "dp_replicate=2,dp_shard=2 hybrid_shard"
    "tp=2 no_shard"
    "pp=2 no_shard"
    "cp=2 full_shard"
)

title() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] || title() { printf '\n%s\n' "$*"; }

# Shows a command as one would type it, then runs it.
show() {
    printf '$ %s\n' "$*"
    "$@"
}

# train NAME PLAN: the last line of progress, or all of the output when it fails.
train() {
    local log=$out/${1//[ ,=]/_}.log
    if ! build/fsdp-run "$2" --data "$data" --steps "$steps" --db "$store" >"$log" 2>&1; then
        cat "$log" >&2
        echo "demo: training in the layout '$1' failed" >&2
        exit 1
    fi
    printf '%-38s %s\n' "$1" "$(last_step "$log")"
}
last_step() { grep -E '^ *(step +)?[0-9]' "$1" | tail -n 1; }

# How far apart the last losses of all runs are: every layout trains the same model.
spread() {
    for log in "$out"/*.log; do
        last_step "$log"
    done | awk '
        { for (i = 1; i < NF; i++) if ($i == "loss") loss = $(i + 1) + 0 }
        NR == 1 || loss < low { low = loss }
        NR == 1 || loss > high { high = loss }
        END { printf "last losses of %d runs agree within %.1e (relative)\n", NR, (high - low) / low }'
}

rm -rf "$out"
mkdir -p "$out"

title "1. What can this machine do?"
show build/fsdp-run calibrate -o "$topology"

title "2. Which layout is best for $model on it?"
show build/fsdp-plan search "${workload[@]}" --gpus "$(nproc)" -o "$out/best.plan"

title "3. Train it: $steps steps in that layout, and in others"
train "best of the search" "$out/best.plan"
for other in "${others[@]}"; do
    read -r layout strategy <<<"$other"
    plan=$out/$layout-$strategy.plan
    build/fsdp-plan estimate "${workload[@]}" --layout "$layout" --strategy "$strategy" -o "$plan" >/dev/null
    train "$other" "$plan"
done
spread

title "4. Was the prediction right?"
show build/fsdp-report "$store" --run 1
build/fsdp-report "$store" --run 1 --html "$out/report" >/dev/null

title "Read on"
cat <<END
the report as a page    $PWD/$out/report/index.html
why that layout         build/fsdp-plan explain $out/best.plan
all other layouts       build/fsdp-plan search --model $model --topology $topology --gpus 8 --top 30
END
