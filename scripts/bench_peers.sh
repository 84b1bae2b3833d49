#!/usr/bin/env bash
# fsdp-run beside PyTorch on the same training: model, initial values, samples, fp32, AdamW, clipping,
# ranks and threads.  Rounds run one after the other, A B C A B C ...; prints medians of their medians
# and the spread between rounds.  PYTHON names a Python that has torch.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
model=${MODEL:-small-10m}
data=${DATA:-models/text/shakespeare.txt}
batch=${BATCH:-8}
seq=${SEQ:-128}
rounds=${ROUNDS:-5}
steps=${STEPS:-12}
out=build/bench-peers

if ! version=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null); then
    echo "bench-peers: skipped: $python has no PyTorch (PYTHON=... names another)"
    exit 0
fi
rm -rf "$out"
mkdir -p "$out"

# Large blocks stay with the process instead of going back to the kernel after each step; fsdp-run
# allocates nothing in a step.
export GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296
export TORCHINDUCTOR_CACHE_DIR=$PWD/$out/inductor
export PYTHONWARNINGS=ignore

# plan NAME LAYOUT STRATEGY RANKS
plan() {
    build/fsdp-plan estimate --model "$model" --global-batch "$batch" --seq-len "$seq" \
        --precision fp32 --optimizer adamw --layout "$2" --strategy "$3" \
        --micro-batch $((batch / $4)) --recompute none -o "$out/$1.plan" >/dev/null
}
ours() { build/fsdp-run "$out/$1.plan" --data "$data" --steps "$steps" --json; }
torch() {
    "$python" tests/bench/peers/llama_torch.py --model "models/$model/config.json" --data "$data" \
        --batch "$batch" --seq "$seq" --steps "$steps" "$@"
}

# Of a run's lines: tokens/s of the median step after three, to NAME.speed; the last loss to NAME.loss.
record() {
    local name=$1
    shift
    "$@" >"$out/$name.lines" 2>"$out/$name.log" || {
        cat "$out/$name.log" >&2
        exit 1
    }
    field seconds "$name" | tail -n +4 | sort -g |
        awk -v tokens=$((batch * seq)) '{ s[NR] = $1 } END { print tokens / s[int((NR + 1) / 2)] }' \
            >>"$out/$name.speed"
    field loss "$name" | tail -n 1 >"$out/$name.loss"
}
field() { sed -n "s/.*\"$1\": \([0-9.e+-]*\).*/\1/p" "$out/$2.lines"; }

# median and spread of NAME.speed
summary() {
    sort -g "$out/$1.speed" | awk '
        { s[NR] = $1 }
        END { m = (s[int((NR + 1) / 2)] + s[int(NR / 2) + 1]) / 2; print m, 100 * (s[NR] - s[1]) / m }'
}

# row TITLE PEER OURS TARGET
row() {
    echo "$(summary "$2") $(summary "$3") $(cat "$out/$2.loss" "$out/$3.loss" | tr '\n' ' ')" |
        awk -v title="$1" -v target="$4" '{
            d = $6 / $5 - 1
            printf "%-46s %9.0f %5.1f%% %9.0f %5.1f%% %7.2f %6s %9.1e\n", title, $1, $2, $3, $4, $3 / $1, target, d < 0 ? -d : d
        }'
}

echo "machine:  $(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
echo "load:     $(cut -d ' ' -f 1-3 /proc/loadavg) (a busy machine measures its neighbours)"
echo "PyTorch:  $version; $(git describe --always --dirty 2>/dev/null || echo 'unknown revision')"
echo "training: $model, $batch x $seq tokens a step, fp32, AdamW; $rounds rounds of $steps steps"

plan two dp_shard=2 full_shard 2
plan one dp_shard=1 no_shard 1
for round in $(seq "$rounds"); do
    echo "round $round of $rounds" >&2
    record two ours two
    record fsdp2 torch --ranks 2 --threads 1
    record fsdp2-compiled torch --ranks 2 --threads 1 --compile
    record one ours one
    record eager torch --threads 2
    record compiled torch --threads 2 --compile
done

printf '\n%-46s %9s %6s %9s %6s %7s %6s %9s\n' '' PyTorch spread fsdp-run spread ratio target loss
row '2 ranks x 1 thread: FSDP2 + gloo, eager' fsdp2 two 1.5
row '2 ranks x 1 thread: FSDP2 + gloo, compiled' fsdp2-compiled two 1.5
row '1 rank x 2 threads: eager' eager one 1
row '1 rank x 2 threads: compiled' compiled one 1
echo "(tokens/s; ratio = fsdp-run's over PyTorch's; loss = relative difference after $steps steps)"

for threads in 1 2; do
    printf '\n'
    build/tests/bench/bench_executor "$threads"
done
