# Shared by the tests on a CUDA device. Sourced with the path of dtrain as $1, in a scratch folder.
# shellcheck shell=bash
# shellcheck source=tests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

"$dtrain" info >info.txt 2>&1 || { cat info.txt >&2; exit 1; }
if ! grep -qE '^device +cuda [0-9]+:' info.txt; then
    echo "skipped: $(sed -nE 's/^device +cuda( 0 cannot be opened)?: //p' info.txt | grep . || echo 'this build has no CUDA')" >&2
    exit 77
fi

limited() { # command …: ends a hang, which would use up the time of later tests; gpu.sh can end its process group
    timeout --foreground --kill-after=5 "${RUN_SECONDS:-1000}" "$@"
}

# A run on one rank; its log is shown if it fails.
train() { # name, key=value …
    local name=$1
    shift
    limited "$dtrain" small.ini run.name="$name" "$@" >"$name.log" 2>&1 || { cat "$name.log" >&3; return 1; }
}

on_ranks() { # n, name, key=value …
    local n=$1 name=$2
    shift 2
    limited "${local_mpirun[@]}" -np "$n" "$dtrain" small.ini run.name="$name" "$@" >"$name.log" 2>&1 || { cat "$name.log" >&3; return 1; }
}

curve() { # name: the path of its metrics
    echo "runs/$1/metrics.jsonl"
}

first_step() { # name: the metrics of its first step
    grep '"event":"train","step":1,' "$(curve "$1")"
}

# ---- measurements are lines of JSON; a line about a machine comes before those of that machine

value() { # key: prints its value in lines of JSON
    sed -nE "s/.*\"$1\":\"?([^,\"}]*).*/\1/p"
}

about_machine() { # prints a line of JSON
    local commit driver
    commit=$(cat "$repository/COMMIT" 2>/dev/null || git -C "$repository" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
    tr -d '\\"\r\t' <info.txt | awk -v commit="$commit" -v driver="$driver" -v date="$(date -u +%Y-%m-%dT%H:%M:%SZ)" -v os="$(uname -srm)" '
        { info = info (NR > 1 ? "," : "") "\"" $0 "\"" }
        sub(/^device *cuda 0: /, "") { sub(/ \(.*/, ""); gpu = $0 }
        END { printf "{\"gpu\":\"%s\",\"date\":\"%s\",\"commit\":\"%s\",\"driver\":\"%s\",\"system\":\"%s\",\"info\":[%s]}\n",
            gpu, date, commit, driver, os, info }'
}
