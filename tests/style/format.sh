#!/usr/bin/env bash
# Every source file is formatted as clang-format does with .clang-format. Skipped without clang-format 14: dtrain does
# not need it, and another version would break lines in other places.
set -uo pipefail
cd "$(dirname "$0")/../.."
program=$(command -v clang-format-14 || command -v clang-format) ||
    { echo "skipped: clang-format is not installed (Debian: apt install clang-format-14)" >&2; exit 77; }
"$program" --version | grep -q 'version 14\.' ||
    { echo "skipped: $("$program" --version), and the sources are formatted with version 14" >&2; exit 77; }
mapfile -t files < <(find src kernels tests data -type f \( -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) 2>/dev/null)
[ ${#files[@]} -gt 100 ] || { echo "only ${#files[@]} source files found in $PWD" >&2; exit 1; }
"$program" --dry-run -Werror "${files[@]}" ||
    { echo "fix with: clang-format -i FILE" >&2; exit 1; }
echo "${#files[@]} files" >&2
