#!/usr/bin/env bash
# The main job on the real trace that ships with the project: every scheme on the same routing.
# Usage: bash scripts/demo.sh [further options of `moereplay compare`]
set -euo pipefail
source "$(dirname "$0")/_venv.sh" ""  # no extra, whatever options are given here

mkdir -p out
moereplay compare gpt-oss-20b-decode --json out/gpt-oss-20b-decode.json \
    --html out/gpt-oss-20b-decode.html "$@"
echo
echo "Every number behind the table: $root/out/gpt-oss-20b-decode.json"
echo "The report, to open in a browser: $root/out/gpt-oss-20b-decode.html"
