#!/usr/bin/env bash
# Runs sass.py with the arguments given. Skipped (77) where there is no Python.
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
exec python3 "$(dirname "$0")/sass.py" "$@"
