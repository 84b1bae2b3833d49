#!/usr/bin/env bash
# The bundle (make bundle) in a root of its own, which has nothing else but a C library and a shell,
# and nothing in its environment: plans, trains on 2 ranks, reports, and refuses what needs a GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

bundle=${1:-build/bundle}
if ! unshare --mount --map-root-user true 2>/dev/null; then
    echo "SKIP: no new root can be made here (unshare --mount)"
    exit 77
fi
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
mkdir -p "$root"/{bin,lib64,lib/x86_64-linux-gnu,proc,sys,dev,tmp,opt,etc}
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd" # PMIx wants to know who it is
cp -R "$bundle" "$root/opt/moved here" # relocatable, whatever its name

# with_libraries PROGRAM...: into /bin, with what it needs of this machine.
with_libraries() {
    local program path
    for program in "$@"; do
        path=$(readlink -f "$(command -v "$program")")
        cp "$path" "$root/bin/$program"
        ldd "$path" | grep -o '/[^ ]*' | while read -r path; do cp -L "$path" "$root$(readlink -f "$(dirname "$path")" | sed 's,^/usr,,')/"; done
    done
}
with_libraries sh dirname
# Of glibc also what is opened at run time or by name.
for library in libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 libm.so.6 libmvec.so.1 \
    libnss_files.so.2 libnss_dns.so.2; do
    cp -L "/lib/x86_64-linux-gnu/$library" "$root/lib/x86_64-linux-gnu/" 2>/dev/null || true
done

# Where it has the plug-in: CUDA is what that machine must have, here with a driver that finds no GPU.
cuda=/opt/cuda
with_cuda=no
if [ -e "$bundle/lib/fsdp/fsdp-cuda.so" ] && [ -e "${CUDA_HOME:=/usr/local/cuda}/lib64/stubs/libcuda.so" ]; then
    with_cuda=yes
    mkdir -p "$root$cuda"
    cp -L "$CUDA_HOME"/lib64/libcublasLt.so.*[0-9] "$root$cuda/"
    cp -L "$CUDA_HOME/lib64/stubs/libcuda.so" "$root$cuda/libcuda.so.1"
fi

cat >"$root/script" <<'SCRIPT'
set -eu
bin="/opt/moved here/bin"
text="/opt/moved here/share/fsdp/models/text/shakespeare.txt"
cd /tmp
"$bin/fsdp-plan" search --model tiny-1m --topology localhost --gpus 2 --global-batch 4 --seq-len 64 \
    --strategy full_shard -o two.plan
"$bin/fsdp-run" two.plan --data "$text" --steps 3 --db runs.db
"$bin/fsdp-report" runs.db
"$bin/fsdp-plan" search --model tiny-1m --topology dgx-h100 --gpus 2 --global-batch 4 -o gpu.plan
status=0
"$bin/fsdp-run" gpu.plan --data "$text" --device cuda 2>no-gpu || status=$?
echo "without a GPU: status $status"
while read -r line; do echo "said: $line"; done <no-gpu
if [ -e /opt/cuda ]; then
    status=0
    LD_LIBRARY_PATH=/opt/cuda "$bin/fsdp-run" gpu.plan --data "$text" 2>no-gpu || status=$?
    echo "with CUDA and a driver: status $status"
    while read -r line; do echo "said then: $line"; done <no-gpu
fi
SCRIPT

status=0
# shellcheck disable=SC2016 # $0 and on are the inner shell's
unshare --mount --map-root-user bash -c '
    mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" &&
        exec env -i "$1" "$0" /bin/sh /script' "$root" "$(command -v chroot)" >"$root/out" 2>&1 || status=$?
failed() {
    cat "$root/out"
    echo "FAIL: $*"
    exit 1
}
[ "$status" -eq 0 ] || failed "status $status"
[ "$(grep -c '^step  ' "$root/out")" -eq 3 ] || failed "not 3 steps"
grep -q 'memory_bytes' "$root/out" || failed "no report"
grep -q '^without a GPU: status 3$' "$root/out" || failed "a plan for GPUs is not refused"
[ "$(grep -c '^said: ' "$root/out")" -eq 1 ] || failed "not one line says why"
grep '^said: fsdp-run: device "cuda": ' "$root/out"
if [ "$with_cuda" = yes ]; then # all of the plug-in is loaded before it can find no GPU
    grep -q '^with CUDA and a driver: status 3$' "$root/out" || failed "the plug-in does not end with 3"
    grep '^said then: .*no GPU can be used here' "$root/out" || failed "the plug-in finds not all that it needs"
fi
echo "the bundle plans, trains on 2 ranks and reports, in a root with a C library and a shell"
