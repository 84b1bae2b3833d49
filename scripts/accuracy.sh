#!/usr/bin/env bash
# Predicted step time against measured, on this machine: calibrates (or takes TOPOLOGY), runs a set of
# layouts in interleaved rounds, prints the median of each with the spread between rounds, and whether
# pairs that differ by more than the spread are in the predicted order.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${MODEL:-tiny-1m}
data=${DATA:-models/text/shakespeare.txt}
rounds=${ROUNDS:-5}
steps=${STEPS:-12}
out=build/accuracy
topology=${TOPOLOGY:-$out/here.topology}
workload=(--model "$model" --topology "$topology" --global-batch "${BATCH:-8}" --seq-len "${SEQ:-128}")

# name | axes | strategy | further choices
layouts=(
    "1|dp_shard=1|no_shard|micro_batch=8,recompute=none"
    "2|dp_shard=1|no_shard|micro_batch=2,recompute=none"
    "3|dp_shard=1|full_shard|micro_batch=8,recompute=none"
    "4|dp_shard=1|no_shard|micro_batch=8,recompute=full"
    "5|dp_replicate=2|no_shard|micro_batch=4,recompute=none"
    "6|dp_shard=2|shard_optimizer|micro_batch=4,recompute=none"
    "7|dp_shard=2|shard_grad_op|micro_batch=4,recompute=none"
    "8|dp_shard=2|full_shard|micro_batch=4,recompute=none"
    "9|dp_shard=2|full_shard|micro_batch=1,recompute=none"
    "10|dp_shard=2|full_shard|micro_batch=4,recompute=full"
    "11|dp_shard=2|full_shard|micro_batch=2,recompute=none,form=flat,accumulate=unsharded"
    "12|dp_shard=4|full_shard|micro_batch=2,recompute=none"
    "13|dp_replicate=4|no_shard|micro_batch=2,recompute=none"
    "14|dp_replicate=2,dp_shard=2|hybrid_shard|micro_batch=2,recompute=none"
    "15|tp=2|no_shard|micro_batch=8,recompute=none"
    "16|tp=2,dp_shard=2|full_shard|micro_batch=4,recompute=none,sequence=false"
    "17|cp=2|full_shard|micro_batch=8,recompute=none,context=ring"
    "18|cp=2|full_shard|micro_batch=8,recompute=none,context=all_gather"
    "19|pp=2|no_shard|micro_batch=1,recompute=none,schedule=1f1b"
    "20|pp=2|no_shard|micro_batch=1,recompute=none,schedule=zb_h1"
    "21|pp=2|no_shard|micro_batch=2,recompute=selective,schedule=gpipe"
    "22|pp=2,dp_shard=2|full_shard|micro_batch=1,recompute=none,schedule=interleaved,virtual_stages=2"
)

mkdir -p "$out"
rm -f "$out"/*.plan "$out"/*.seconds
if [ ! -e "$topology" ]; then
    build/fsdp-run calibrate -o "$topology"
fi

for layout in "${layouts[@]}"; do
    IFS='|' read -r name axes strategy fix <<<"$layout"
    build/fsdp-plan estimate "${workload[@]}" --layout "$axes" --strategy "$strategy" --fix "$fix" \
        -o "$out/$name.plan" >/dev/null
done

# Medians of the steps after the first three, one a round.
for round in $(seq "$rounds"); do
    for layout in "${layouts[@]}"; do
        name=${layout%%|*}
        build/fsdp-run "$out/$name.plan" --data "$data" --steps "$steps" --json |
            sed -n 's/.*"seconds": \([0-9.e+-]*\).*/\1/p' | tail -n +4 | sort -g |
            awk '{ s[NR] = $1 } END { print s[int((NR + 1) / 2)] }' >>"$out/$name.seconds"
    done
    echo "round $round of $rounds" >&2
done

echo "machine:  $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, load $(cut -d ' ' -f 1 /proc/loadavg)"
echo "model:    $model, ${workload[*]:4}; $rounds rounds of $steps steps"
for layout in "${layouts[@]}"; do
    IFS='|' read -r name axes strategy fix <<<"$layout"
    predicted=$(sed -n 's/.*"step_seconds" : \([0-9.e+-]*\).*/\1/p' "$out/$name.plan" | head -n 1)
    sort -g "$out/$name.seconds" | awk -v p="$predicted" -v name="$axes $strategy $fix" '
        { s[NR] = $1 }
        END { printf "%s|%.6g|%.6g|%.4f\n", name, p, s[int((NR + 1) / 2)], (s[NR] - s[1]) / s[int((NR + 1) / 2)] }'
done | awk -F '|' '
    BEGIN { printf "%-78s %10s %10s %8s %8s\n", "layout", "predicted", "measured", "error", "spread" }
    {
        e = $3 / $2 - 1; limit = 2 * $4 > 0.10 ? 2 * $4 : 0.10; ok = (e < 0 ? -e : e) <= limit
        printf "%-78s %7.1f ms %7.1f ms %+7.1f%% %7.1f%% %s\n", $1, $2 * 1e3, $3 * 1e3, e * 100, $4 * 100, ok ? "" : "OUT"
        p[NR] = $2; m[NR] = $3; s[NR] = $4; good += ok; sum += (e < 0 ? -e : e)
    }
    END {
        for (i = 1; i <= NR; i++)
            for (j = i + 1; j <= NR; j++) {
                d = m[i] - m[j]; w = (s[i] > s[j] ? s[i] : s[j]) * (m[i] > m[j] ? m[i] : m[j])
                if ((d < 0 ? -d : d) <= w) continue
                pairs++; right += (d > 0) == (p[i] > p[j])
            }
        printf "%d of %d within max(10%%, 2 x spread); mean error %.1f%%; %d of %d pairs that differ by more than the spread in the right order\n", good, NR, sum / NR * 100, right, pairs
    }'
