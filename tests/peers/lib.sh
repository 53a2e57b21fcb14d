# shellcheck shell=bash disable=SC2154
# Shared by run.sh and gpu.sh. The caller sets $results, $limit, $here and $python. If $BUDGET is set, it is the number
# of seconds for everything: a variant gets at most what is left, and none begins when nothing is left.

# one NAME VARIANT COMMAND…: appends the command's last line of output to the results, or why there is none.
one() {
    local name=$1 variant=$2 line rc why most=$((${BUDGET:-86400} - SECONDS))
    shift 2
    most=$((most < limit ? most : limit))
    echo "$name $variant, for up to $most s" >&2
    if [ $most -lt 10 ]; then
        echo "{\"peer\": \"$name\", \"variant\": \"$variant\", \"error\": \"no time is left\"}" >>"$results"
        return
    fi
    line=$(timeout --kill-after=5 $most "$@" 2>"$results.log" | tail -n 1; exit "${PIPESTATUS[0]}")
    rc=$?
    if [ $rc -eq 0 ]; then
        echo "$line" >>"$results"
        return
    fi
    tail -n 3 "$results.log" >&2
    why=$({ grep -i 'error: ' "$results.log" || tail -n 1 "$results.log"; } | tail -n 1 |
        tr -d '\\"' | tr -c '[:print:]\n' ' ' | cut -c1-160)
    case $rc in
    77) why="skipped: $why" ;;
    124 | 137) why="none within $most s" ;;
    *) why="failed, code $rc: $why" ;;
    esac
    echo "{\"peer\": \"$name\", \"variant\": \"$variant\", \"error\": \"$why\"}" >>"$results"
}

table() {
    rm -f "$results.log"
    "$python" "$here/table.py" "$results"
}
