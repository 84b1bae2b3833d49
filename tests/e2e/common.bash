# What every script here needs; to be sourced.  Sets build (of $BUILD), tmp (a folder of its own,
# removed at the end), and goes to the top of the tree.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=$(realpath "${BUILD:-build}")
tmp=$(mktemp -d)
# Criticals and warnings of GLib end the program with a signal.
export G_DEBUG=fatal-warnings
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

# Ends what a failed script has left running: only what has our folder among its arguments.
clean_up() {
    pkill -KILL -f "$tmp/" 2>/dev/null || true
    rm -rf "$tmp"
}
trap clean_up EXIT

# complain TEXT...: notes a failure and goes on.
complain() {
    printf 'FAIL: %s\n' "$*" >&2
    failures=$((failures + 1))
}

die() {
    complain "$@"
    exit 1
}

# The last line of a script.
finish() {
    [ "$failures" -eq 0 ] || die "$failures failures"
    echo "$(basename "$0"): $1"
}

# plan FILE OPTION...: searches a plan of the small model.
plan() {
    local file=$1
    shift
    timeout 60 "$build/fsdp-plan" search --model models/tiny-1m --topology localhost -o "$file" "$@" \
        >"$tmp/plan.out" || die "fsdp-plan search $*: status $?"
}

# refused STATUS PATTERN COMMAND...: one line.
refused() {
    local want=$1 pattern=$2 status=0
    shift 2
    timeout 60 "$@" >"$tmp/stdout" 2>"$tmp/stderr" </dev/null || status=$?
    [ "$status" -eq "$want" ] || complain "$*: status $status, not $want"
    [ "$(wc -l <"$tmp/stderr")" -eq 1 ] || complain "$*: stderr: $(<"$tmp/stderr")"
    grep -q "$pattern" "$tmp/stderr" || complain "$*: \"$pattern\" is not in: $(<"$tmp/stderr")"
}

# make_text FILE: some kilobytes of prose.
make_text() {
    local i
    for ((i = 0; i < 400; i++)); do
        echo "Line $i says that $((i * i)) is the square of $i, and that the café is open."
    done >"$1"
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -le "$end" ] || return 1
        sleep 0.05
    done
}
