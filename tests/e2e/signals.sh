#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# Runs that are stopped, killed, or meet a loss that is not finite: exit status, what is said, what
# the store says, and that nothing is left: no process, no shared memory, no folder.
. "$(dirname "$0")/common.bash"

text=$tmp/text
make_text "$text"
plan "$tmp/2.plan" --gpus 2 --global-batch 4 --seq-len 64 --strategy full_shard
plan "$tmp/3.plan" --gpus 3 --global-batch 6 --seq-len 64 --strategy full_shard

# start NAME RANKS OPTION...: a run without end, up to where all ranks train.  Sets runner (pid of
# what was started), folder (of the job) and ranks (pids); what is printed goes to NAME.out and .err.
start() {
    name=$1 db=$tmp/$1.db
    # With job control, else a script's background job would ignore SIGINT.
    set -m
    timeout --foreground 120 "$build/fsdp-run" "$tmp/$2.plan" --data "$text" --steps 100000 \
        --db "$db" "${@:3}" >"$tmp/$name.out" 2>"$tmp/$name.err" &
    set +m
    watcher=$!
    wait_for 60 grep -q '^step *3/' "$tmp/$name.out" || die "$name: no third step: $(<"$tmp/$name.err")"
    runner=$(pgrep -P "$watcher")
    mpirun=$(pgrep -P "$runner" mpirun)
    mapfile -t ranks < <(pgrep -P "$mpirun" fsdp-run)
    [ "${#ranks[@]}" -eq "$2" ] || die "$name: ${#ranks[@]} ranks instead of $2"
    folder=$(dirname "$(tr '\0' '\n' <"/proc/${ranks[0]}/environ" | sed -n 's/^FSDP_RUN_STARTED=//p')")
    [ -d "$folder" ] || die "$name: no folder of the job"
}

# ended STATUS: waits for the run; 5 s are enough.
ended() {
    local status=0 begin=$SECONDS
    wait "$watcher" 2>/dev/null || status=$?
    [ "$status" -eq "$1" ] || complain "$name: status $status, not $1: $(<"$tmp/$name.err")"
    [ $((SECONDS - begin)) -le 5 ] || complain "$name: ended after $((SECONDS - begin)) s"
}

is_gone() {
    [ ! -e "$folder" ] && ! pgrep -f "$tmp/$name.db" >/dev/null
}

nothing_left() {
    wait_for 5 is_gone || complain "$name: left $(ls -d "$folder" 2>&1) $(pgrep -af "$tmp/$name.db")"
}

# store_says STATUS...: the store is whole; the last run's status is one of these.
store_says() {
    local status
    if command -v sqlite3 >/dev/null; then
        [ "$(sqlite3 "$db" 'PRAGMA integrity_check')" = ok ] || complain "$name: the store is damaged"
    fi
    status=$(timeout 60 "$build/fsdp-report" "$db" --json |
        sed -n 's/.*"status" *: *"\([^"]*\)".*/\1/p') || complain "$name: the store does not open"
    [[ " $* " == *" $status "* ]] || complain "$name: status \"$status\" in the store, not $*"
}

# What stderr says beside the lines that tell what the run will do.
complaints() {
    grep -v '^  [a-z]' "$tmp/$name.err" || true
}

# says PATTERN: one line on stderr, of ours.
says() {
    [ "$(complaints | grep -c '')" -eq 1 ] || complain "$name: stderr: $(<"$tmp/$name.err")"
    grep -Eq "^fsdp-run: .*$1" "$tmp/$name.err" || complain "$name: no \"$1\" in: $(<"$tmp/$name.err")"
}

silent() {
    [ -z "$(complaints)" ] || complain "$name: stderr: $(<"$tmp/$name.err")"
}

# ---- stopped ----

for signal in INT TERM; do
    start "stopped-$signal" 2
    kill -"$signal" "$runner"
    ended 0
    silent
    store_says stopped
    nothing_left
done

# To one rank alone: all finish the same step.
start "stopped-rank" 2
kill -TERM "${ranks[1]}"
ended 0
store_says stopped
nothing_left

# ---- killed ----

# kill_rank INDEX: of ranks; the others name it, with what it did last.
kill_rank() {
    local rank op='"step [0-9]+ micro-batch [0-9]+ [a-z_.]+ unit [0-9]+"'
    rank=$(tr '\0' '\n' <"/proc/${ranks[$1]}/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
    kill -KILL "${ranks[$1]}"
    ended 3
    grep -Eq "^fsdp-run: rank $rank \\(pid ${ranks[$1]} .*died; its last op: $op" "$tmp/$name.err" ||
        complain "$name: does not name rank $rank and its last op: $(<"$tmp/$name.err")"
    store_says running failed
    nothing_left
}

start "killed-one-of-3" 3
kill_rank 2
start "killed-one-of-2" 2
kill_rank 0
start "killed-the-other" 2
kill_rank 1

start "killed-launcher" 2
kill -KILL "$runner"
ended 137
store_says running stopped failed
nothing_left

start "killed-mpirun" 2
kill -KILL "$mpirun"
ended 3
store_says running stopped failed
nothing_left

# In the midst of copies to and from files.
{
    timeout 60 "$build/fsdp-plan" topology localhost
    printf '%s\n' '[memory nvme]' 'capacity=100 GB' 'bandwidth=1 GB/s' 'latency=100 us'
} >"$tmp/disk.topology"
disk=$(mktemp -d -p "$build")
trap 'rm -rf "$disk"; clean_up' EXIT
plan "$tmp/2.plan" --topology "$tmp/disk.topology" --gpus 2 --global-batch 4 --seq-len 64 \
    --strategy full_shard --offload optimizer=nvme,parameters=nvme
start "killed-with-files" 2 --nvme "$disk"
[ -n "$(find "/proc/${ranks[0]}/fd" -lname "*$disk/*(deleted)")" ] || complain "$name: has no file"
kill_rank 1
[ -z "$(ls -A "$disk")" ] || complain "$name: left $(ls -A "$disk")"
start "stopped-with-files" 2 --nvme "$disk"
kill -TERM "$runner"
ended 0
silent
nothing_left
plan "$tmp/2.plan" --gpus 2 --global-batch 4 --seq-len 64 --strategy full_shard

# What was written before goes on being readable, and written.
timeout 60 "$build/fsdp-run" "$tmp/2.plan" --data "$text" --steps 3 --db "$db" >/dev/null ||
    complain "another run into the store of a killed one: status $?"

# ---- not finite ----

for ranks_wanted in 2 3; do
    name=non-finite-$ranks_wanted db=$tmp/$name.db status=0
    timeout 60 "$build/fsdp-run" "$tmp/$ranks_wanted.plan" --data "$text" --steps 50 --lr 1e30 \
        --db "$db" >"$tmp/$name.out" 2>"$tmp/$name.err" || status=$?
    [ "$status" -eq 3 ] || complain "$name: status $status, not 3"
    says 'step 2: .*not finite'
    [ "$(grep -c '^step ' "$tmp/$name.out")" -eq 2 ] || complain "$name: not stopped at step 2"
    store_says non-finite
done

finish "nothing was left behind"
