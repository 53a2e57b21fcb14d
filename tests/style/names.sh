#!/usr/bin/env bash
# Every file that src/README.md names exists, and each `path:name` is in that file. With a build folder, every test that
# tests/README.md names for a promise exists.
set -euo pipefail
cd "$(dirname "$0")/../.."
status=0 names=0
named() { # names of the form path or path:name; NAME stands for any name
    # shellcheck disable=SC2016 # backquotes of Markdown
    grep -oE '`(src|kernels|tests)/[A-Za-z0-9_./]+\.[a-z]+(:[A-Za-z0-9_]+)?`' src/README.md | tr -d '`' | grep -v NAME
}
while IFS=: read -r file name; do
    names=$((names + 1))
    if [ ! -f "$file" ]; then
        echo "src/README.md names $file, which is not there" >&2
        status=1
    elif [ -n "$name" ] && ! grep -qwF "$name" "$file"; then
        echo "src/README.md names $name, which is not in $file" >&2
        status=1
    fi
done < <(named)
[ $names -gt 40 ] || { echo "only $names names were found in src/README.md" >&2; exit 1; }

promises() { # the last column of the table of promises
    sed -n '/^## What users are promised/,/^## Run/s/^| .* | \(`.*\) |$/\1/p' tests/README.md
}
if [ -n "${1:-}" ]; then
    ctest --test-dir "$1" -N | sed -n 's/^ *Test *#[0-9]*: \([^ ]*\).*/\1/p' | sort >"$1/all_tests.txt"
    missing=$(promises | grep -o '`[^`]*`' | tr -d '`' | sort -u | comm -23 - "$1/all_tests.txt")
    [ -z "$missing" ] || { echo "tests/README.md names tests that do not exist:" $missing >&2; status=1; }
    [ "$(promises | wc -l)" -gt 15 ] || { echo "the promises of tests/README.md were not found" >&2; status=1; }
fi
exit $status
