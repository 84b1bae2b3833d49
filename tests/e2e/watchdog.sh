#!/usr/bin/env bash
# shellcheck disable=SC1091,SC2154 # what common.bash sets
# A rank that stops in mid-run: the watchdog names it, says where all ranks are, and ends the job
# with status 3; nothing is left.  Long silence of the whole job is no alarm.
. "$(dirname "$0")/common.bash"

limit=2
text=$tmp/text
make_text "$text"
for ranks in 2 4; do
    plan "$tmp/$ranks.plan" --gpus "$ranks" --global-batch 8 --seq-len 64 --strategy full_shard
done

# start NAME RANKS STEPS OPTION...: up to where all ranks train.  Sets runner, rank_pids by rank.
start() {
    local pid rank
    name=$1
    "$build/fsdp-run" "$tmp/$2.plan" --data "$text" --steps "$3" --watchdog "$limit" \
        --db "$tmp/$name.db" "${@:4}" >"$tmp/$name.out" 2>"$tmp/$name.err" &
    runner=$!
    wait_for 60 grep -q '^step *3/' "$tmp/$name.out" || die "$name: no third step: $(<"$tmp/$name.err")"
    rank_pids=()
    for pid in $(pgrep -P "$(pgrep -P "$runner" mpirun)" fsdp-run); do
        rank=$(tr '\0' '\n' <"/proc/$pid/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
        rank_pids[rank]=$pid
    done
    [ "${#rank_pids[@]}" -eq "$2" ] || die "$name: ${#rank_pids[@]} ranks instead of $2"
}

is_gone() {
    ! pgrep -f "$tmp/$name.db" >/dev/null
}

# stop_rank NAME RANKS RANK: the named one stops; all end.
stop_rank() {
    local status=0 begin=$SECONDS r
    start "$1" "$2" 1000000
    kill -STOP "${rank_pids[$3]}"
    wait "$runner" || status=$?
    [ "$status" -eq 3 ] || complain "$name: status $status, not 3"
    [ $((SECONDS - begin)) -le $((limit + 60)) ] || complain "$name: ended after $((SECONDS - begin)) s"
    grep -q "^fsdp-run: watchdog: no progress for $limit s, held up by rank $3; " "$tmp/$name.err" ||
        complain "$name: rank $3 is not named: $(<"$tmp/$name.err")"
    for ((r = 0; r < $2; r++)); do
        [ "$(grep -c "^fsdp-run: rank $r (pid ${rank_pids[r]}), idle " "$tmp/$name.err")" -eq 1 ] ||
            complain "$name: not one line of rank $r: $(<"$tmp/$name.err")"
    done
    grep -q "^fsdp-run: rank $3 .* its process is stopped; .*(op [0-9]* of step [0-9]*)" \
        "$tmp/$name.err" || complain "$name: does not say what rank $3 did: $(<"$tmp/$name.err")"
    grep -q "died\|was killed" "$tmp/$name.err" && complain "$name: more than that: $(<"$tmp/$name.err")"
    wait_for 5 is_gone || complain "$name: left $(pgrep -af "$tmp/$name.db")"
}

stop_rank first-of-2 2 0
stop_rank last-of-2 2 1
stop_rank one-of-4 4 2

# ---- no alarm ----

# The whole job stands still for longer than the limit, as under Ctrl-Z.
start paused 2 200
kill -STOP "${rank_pids[@]}"
sleep $((limit + 2))
kill -CONT "${rank_pids[@]}"
status=0
wait "$runner" || status=$?
[ "$status" -eq 0 ] || complain "paused: status $status, not 0: $(<"$tmp/paused.err")"
grep -q watchdog: "$tmp/paused.err" && complain "paused: an alarm: $(<"$tmp/paused.err")"

finish "a rank that stops is named, and the job ends"
