#!/usr/bin/env bash
# Runs a Python program of this folder with the given arguments. Skipped (77) without Python.
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
exec python3 "$(dirname "$0")/$1" "${@:2}"
