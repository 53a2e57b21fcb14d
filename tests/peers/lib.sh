# shellcheck shell=bash disable=SC2154
# What run.sh and gpu.sh share. $results, $limit, $here and $python are the caller's.

# one NAME VARIANT COMMAND…: appends the command's last line of output to the results; where it gave none, why.
one() {
    local name=$1 variant=$2 line rc why
    shift 2
    echo "$name $variant" >&2
    line=$(timeout "$limit" "$@" 2>"$results.log" | tail -n 1; exit "${PIPESTATUS[0]}")
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
    124) why="none within $limit s" ;;
    *) why="failed, code $rc: $why" ;;
    esac
    echo "{\"peer\": \"$name\", \"variant\": \"$variant\", \"error\": \"$why\"}" >>"$results"
}

table() {
    rm -f "$results.log"
    "$python" "$here/table.py" "$results"
}
