#!/usr/bin/env bash
# symbols.sh LIBRARY: every function of the simulated CUDA device must exist in NVIDIA's
# libraries.  (Their types are those of NVIDIA's headers, or the simulator would not compile.)
set -euo pipefail

libraries=("${CUDA_HOME:-/usr/local/cuda}"/lib64/lib{cudart,cublas,cublasLt,nccl}.so)
for library in "${libraries[@]}"; do
    [ -e "$library" ] || { echo "SKIP: no $library to compare with" && exit 0; }
done

functions() { awk 'NF == 3 && $2 ~ /[TW]/ && $3 ~ /^(cuda|cublas|nccl)[A-Z]/ { sub(/@.*/, "", $3); print $3 }' | sort -u; }

real=$(nm -D --defined-only "${libraries[@]}" | functions)
simulated=$(nm --defined-only "$1" | functions)
[ -n "$simulated" ]
unknown=$(comm -13 <(echo "$real") <(echo "$simulated"))
if [ -n "$unknown" ]; then
    echo "not in NVIDIA's libraries:" "$unknown"
    exit 1
fi
echo "$(wc -l <<<"$simulated") simulated functions, all of them real"
