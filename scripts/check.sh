#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lint, types, tests with and without the JIT.
# Usage: bash scripts/check.sh [full]     full adds the extended tier (long property and fuzz runs)
set -euo pipefail
source "$(dirname "$0")/_venv.sh" dev

echo "== format";     ruff format --check .
echo "== lint";       ruff check .
echo "== types";      mypy
echo "== tests";      pytest -q -n 2 --dist worksteal
# The kernels' source must also be right as plain Python: the same tests of the engine, JIT off.
echo "== tests, JIT off"; NUMBA_DISABLE_JIT=1 pytest -q -n 2 --dist worksteal tests/replay/graph
if [ "${1:-}" = full ]; then
    echo "== extended tier"; pytest -q -n 2 -m extended
fi
echo "All checks passed."
