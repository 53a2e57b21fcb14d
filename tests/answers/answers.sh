#!/usr/bin/env bash
# answers.sh DTRAIN TRANSCRIPT TOOL …: compares all that commands print with a transcript. A transcript has lines `$
# COMMAND`, each followed by stdout, stderr with "! " before each line, and the exit code unless it is 0; `## ` begins a
# comment. What depends on the machine, the clock or a library is "~" (see `blank`). Decimals of five digits or more may
# differ by 1e-4 of their value, since processors round differently. `RENEW=1 ctest -R answers` writes the new output
# into the transcripts: read the difference before you commit it. TOOLs write data; each is a command with the name of
# its program.
transcript=$(realpath "$2")
for tool in "${@:3}"; do eval "$(basename "$tool")() { '$(realpath "$tool")' \"\$@\"; }"; done
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/../lib.sh" "$1"
export LC_ALL=C.UTF-8
unset "${!DTRAIN_@}"
dtrain() { "$dtrain" "$@"; }
members() { # the members of JSON on stdin, one a line
    tr -d '\n\t' | sed -E 's/([{,]) *("[^"]*":)/\1\n\2/g' && echo
}
show() { # files …: each with its name
    for file; do
        echo "--- $file"
        case $file in *.json) members <"$file" ;; *) cat "$file" ;; esac
    done
}
each() { # a command with several words of it …: prints what it says with each of them
    local words
    for words in "${@:2}"; do
        echo "[$words] exit code $({ eval "$1 $words" >each.out 2>each.error </dev/null; echo $?; })"
        cat each.out - < <(sed 's/^/! /' each.error)
    done
}
changes() { # a file with another command's output: the lines of stdin that it lacks, and how many of its lines they replace
    diff --unchanged-group-format= --old-group-format=$'- %<' --new-group-format='%>' --changed-group-format=$'in place of %dn:\n%>' \
        <(blank <"$1") <(blank)
    true
}
ops() { # profile.json: the rows of ops, without times
    members <"$1" | tr -d '\n' | sed 's/}, {/\n/g' | grep ' op"\|"op"' |
        sed -E 's/"(seconds|max_seconds)":[^,]*,//g; s/.*"lane"/"lane"/; s/\}.*//' | sort
}
untimed() { # what `dtrain bench --json` prints, without times
    sed -E 's/"(name|[a-z0-9_]*(_ms|_us|_per_s|gflops|ratio|mfu)|ms|gflops|bound|fraction|repeats|steps|last_step|loss|peak_memory_mb)":("[^"]*"|[^,}]*),?//g'
}
figures() { # a table without its numbers: words and units
    sed -E 's/-?[0-9]+(\.[0-9]+)?/~/g; s/ +/ /g'
}
said() { # test program: its errors and warnings, sorted; those of one format or alike except for numbers once (said.c)
    # A long list in a message is cut at a length that depends on the scratch folder's name, so the number of hidden
    # lines is not compared.
    rm -f said.txt
    SAID=$PWD/said.txt "$1" >test.log 2>&1 || tail -n 3 test.log
    grep -v 'Permission denied' said.txt | LC_ALL=C sort | awk -F '\t' '
        { alike = length($1) < 12 ? $2 : $1; gsub(/[0-9a-f]*[0-9][0-9a-f]*/, "", alike) }
        !said[$2]++ && !again[alike]++ { print $2 }' | sed 's/\\n/\n/g; s/^/  /; s/^  \(user\|machine\|dtrain\)/\1/' |
        sed -E 's/\b(test_config_)[A-Za-z0-9]{6}\b/\1~/g; s/\b(tmp-)?[0-9a-f]{16}\b/\1~/g; s/(Open MPI) v[0-9.]+/\1 ~/; s/(cannot [a-z \/]+ [^ ]*): [a-z].*/\1: ~/; /many-0[2-9][0-9]\.h5 is not/d; s/^and [0-9]+ more$/and ~ more/'
}

clock='step_ms|tokens_per_s|data_wait_ms|comm_wait_ms|idle_ms|stall_ms|write_ms|memory_mb'
blank() { # replaces what depends on machine, clock or library, in this order: fields of JSON, console, plan, places
    sed -E -e "s/\"($clock)\":[^,}]*/\"\1\":~/g; s/\"(size|device|dtrain)\":(\"[^\"]*\"|[0-9]+)/\"\1\":~/g" \
        -e 's/\x1b\[K//g; s/\r/\n/g; s/[0-9]+ (tokens|frames)\/s/~ \1\/s/g; s/[0-9.]+ [MGT]FLOP\/s/~ FLOP\/s/g; s/ETA [0-9:]+/ETA ~/g' \
        -e 's/(total time) [0-9:]+/\1 ~/; s/(where the time went|ops): .*/\1: ~/; s/dtrain: .*: rank ([0-9]+ on) .*/dtrain: ~: rank \1 ~/; s/( ranks?) on .*, ([0-9]+ steps)/\1 on ~, \2/' \
        -e 's/^(device:|  free now|  reserved) .*/\1 ~/; s/about [0-9:]+ (for [0-9]+ steps of) [0-9.e+]+ ms/about ~ \1 ~ ms/' \
        -e "s#$PWD#~#g; s#$repository#~#g; s#/[^ ':;,]*dt-test-[A-Za-z0-9]{6}#~#g; s/\b$(hostname)\b/~/g; s/(tfevents)\.[^ ]*/\1.~/; s/(has hash|says) [0-9a-f]{16}/\1 ~/g; s/(only) [0-9]+ cores? may/\1 ~ may/; s/[0-9.]+ GiB(, without swap)/~ GiB\1/" \
        -e '/predicted [0-9]+ %, about|MPI took [0-9.]+ s to start/d'
}
while IFS= read -r line; do
    case $line in
    '## '*) echo "$line" ;;
    '$ '*)
        code=0
        eval "${line#\$ }" >out 2>error </dev/null || code=$?
        { echo "$line" && cat out && sed 's/^/! /' error; } | { read -r command && echo "$command" && blank; }
        [ $code -eq 0 ] || echo "exit code $code"
        ;;
    esac
done <"$transcript" >given.txt
awk 'function same(a, b) { # equal except for the last digits of decimals
        n = split(a, x, /[^0-9.e+-]+/); m = split(b, y, /[^0-9.e+-]+/)
        gsub(/[0-9]+\.[0-9]+(e[+-][0-9]+)?/, "#", a); gsub(/[0-9]+\.[0-9]+(e[+-][0-9]+)?/, "#", b)
        for (i = 1; i <= n; i++) {
            d = x[i] - y[i]; d = d < 0 ? -d : d; size = x[i] < 0 ? -x[i] : x[i]
            if (x[i] != y[i] && (length(x[i]) < 6 || d > 1e-4 * size)) return 0
        }
        return a == b && n == m
    }
    /^\$ / { command = $0; row = 0 }
    NR == FNR { want[command, ++row] = $0; next }
    { print same(want[command, ++row], $0) ? want[command, row] : $0 }' "$transcript" given.txt >near.txt
check "the shell takes every command" test "$(grep -c 'answers.sh: ' given.txt)" -eq 0
[ ! "${RENEW:-}" ] || cp near.txt "$transcript"
check "these lines of ${transcript#"$repository/"} are not what is given" diff -U2 "$transcript" near.txt >&2
finish
