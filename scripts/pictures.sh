#!/usr/bin/env bash
# The pictures and the table that README.md shows, made anew: runs the demo and the accuracy check on this
# machine and copies what they drew to reports/docs/.
set -euo pipefail
cd "$(dirname "$0")/.."

docs=reports/docs
make demo
cp build/demo/report/accuracy.svg "$docs/"
build/fsdp-report build/demo/runs.db --run 6 --html build/demo/full_shard >/dev/null # dp_shard=2 full_shard
cp build/demo/full_shard/timeline.svg "$docs/"

rm -rf build/accuracy
table=$(scripts/accuracy.sh 2>/dev/null)
awk -v table="$table" '
    /^```$/ && !inside { print; print table; inside = 1; next }
    /^```$/ { inside = 0 }
    !inside { print }' "$docs/accuracy.md" >"$docs/accuracy.md.new"
mv "$docs/accuracy.md.new" "$docs/accuracy.md"
