# What both dry runs of a calibration ask of the table of kernel_floors; to be sourced after common.bash.

# floors_are_filled FILE [all]: every op has a time, its floor's share of it, and how many of its works
# were measured; all: every one of each, but of clip, whose time is that of any op without work.
# shellcheck disable=SC2154 # tmp: common.bash
floors_are_filled() {
    awk -v all="${2:-}" 'NR > 2 {
        split($NF, rows, "/")
        bad = bad || NF != 11 || $9 <= 0 || $10 < 0 || rows[2] < 1 || rows[1] > rows[2]
        bad = bad || (all && rows[1] < rows[2] && $1 != "clip")
        ops++
    }
    END { exit bad || ops < 20 }' "$1" || complain "${1#"$tmp"/} is not filled: $(<"$1")"
}
