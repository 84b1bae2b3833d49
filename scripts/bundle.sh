#!/usr/bin/env bash
# Makes a folder that can be copied to another x86-64 Linux with a C library no older than this one's:
# bundle.sh BUILD FOLDER, from `make bundle`.  In it are the programs, which look for libraries in
# ../lib; those libraries, but for glibc, the NVIDIA driver and CUDA's (NCCL, 0.2 GB, comes with
# neither, so it is there); what Open MPI opens at run time; models, topologies; and, where they were
# built, the plug-in and the tests for a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 out=$2

rm -rf "$out"
mkdir -p "$out"/{bin,lib,share/fsdp,mpi/{components,share,etc}}
cp "$build"/fsdp-{plan,run,report} "$out/bin/"
cp -R models topologies "$out/share/fsdp/"
copied=("$out"/bin/*)

if [ -e "$build/fsdp-cuda.so" ]; then
    mkdir -p "$out/lib/fsdp"
    cp "$build/fsdp-cuda.so" "$out/lib/fsdp/"
    copied+=("$out/lib/fsdp/fsdp-cuda.so")
fi
if [ -d "$build/tests/gpu" ]; then
    mkdir -p "$out/tests/gpu"
    find "$build/tests/gpu" -type f -executable -exec cp {} "$out/tests/gpu/" \;
    cp tests/gpu/*.sh "$build/tests/bench/kernel_floors" "$out/tests/gpu/"
    mkdir -p "$out"/tests/{bench/peers,golden}
    cp tests/bench/peers/*.py "$out/tests/bench/peers/"
    cp tests/golden/*.py "$out/tests/golden/" # the peer's model
    ln -s ../lib ../share "$out/tests/" # they too look in ../lib, ../share
    copied+=("$out"/tests/gpu/{test_*,kernel_floors})
fi

# ---- Open MPI ----

# mpi_folder NAME: of the installation that the programs were linked with.
mpi_folder() {
    ompi_info --path "$1" | sed 's/^[^:]*: //'
}

# Networks of their own are left out, since each needs its vendor's libraries: between machines a
# bundle has TCP.
for component in "$(mpi_folder pkglibdir)"/mca_*.so; do
    case $component in
    *_ucx.so | *_ofi.so | *_openib.so | *_psm.so | *_psm2.so | *_flux.so | *_portals4.so | *_ugni.so) ;;
    *) cp -L "$component" "$out/mpi/components/" ;;
    esac
done
cp "$(mpi_folder pkgdatadir)"/*.txt "$out/mpi/share/"
cp "$(mpi_folder sysconfdir)"/*.conf "$out/mpi/etc/" 2>/dev/null || true
cp -L "$(command -v mpirun)" "$out/mpi/mpirun"
copied+=("$out/mpi/mpirun" "$out"/mpi/components/*)

cat >"$out/bin/mpirun" <<'SCRIPT'
#!/bin/sh
# Open MPI, where this folder is now.
here=$(cd "$(dirname "$0")/.." && pwd)
export OPAL_PREFIX="$here/mpi" OPAL_LIBDIR="$here/lib" OPAL_PKGLIBDIR="$here/mpi/components" \
    OPAL_SYSCONFDIR="$here/mpi/etc" OPAL_PKGDATADIR="$here/mpi/share" \
    OPAL_DATADIR="$here/mpi/share" OPAL_BINDIR="$here/mpi" \
    LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$here/mpi/mpirun" "$@"
SCRIPT
chmod +x "$out/bin/mpirun"

# ---- libraries ----

missing=$(ldd "${copied[@]}" | sed -n 's/^\t\(.*\) => not found.*/\1/p' | sort -u |
    grep -v '^lib\(cuda\|cublas\)' || true)
if [ -n "$missing" ]; then
    printf 'bundle.sh: not found on this machine: %s\n' "$missing" >&2
    exit 1
fi
ldd "${copied[@]}" | sed -n 's/^\t\(.*\) => \(\/.*\) (0x.*/\1 \2/p' | sort -u |
    while read -r name path; do
        case $name in
        ld-linux* | libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | librt.so.* | \
            libresolv.so.* | libutil.so.* | libmvec.so.*) ;;
        libcuda.so.* | libcuda[rR]t.so.* | libcublas*.so.*) ;;
        *) cp -L "$path" "$out/lib/$name" ;;
        esac
    done
# The programs look in ../lib for what libraries need too, unless one of those says itself where: then
# it is to say the same.  Slashes keep the length.
for file in "$out"/lib/*.so*; do
    path=$(readelf -d "$file" | sed -n 's/.*(R\(UN\)*PATH).*\[\(\/.*\)\]$/\2/p')
    [ -n "$path" ] || continue
    padded=$(printf '%-*s' "${#path}" "\$ORIGIN/../lib" | tr ' ' '/')
    if [ "${#padded}" -ne "${#path}" ]; then
        echo "bundle.sh: $file looks for libraries in $path, which has no room for another" >&2
        exit 1
    fi
    LC_ALL=C sed -i "s|$path|$padded|g" "$file"
done
strip --strip-debug "$out"/lib/*.so* "$out"/bin/fsdp-* 2>/dev/null || true

echo "$out: $(du -sh "$out" | cut -f 1), for glibc $(ldd --version | sed -n '1s/.* //p') or newer"
