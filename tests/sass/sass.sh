#!/usr/bin/env bash
# Runs a Python program of this folder with the arguments given. Skipped (77) where there is no Python.
command -v python3 >/dev/null || { echo "no python3 here"; exit 77; }
exec python3 "$(dirname "$0")/$1" "${@:2}"
