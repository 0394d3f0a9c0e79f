#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lint, types, tests with and without the JIT.
# Usage: bash scripts/check.sh [full|capture]
#   full     adds the extended tier (long property and fuzz runs)
#   capture  installs torch and transformers first; without them the tests of capture are skipped
set -euo pipefail
source "$(dirname "$0")/_venv.sh" dev

# In CI nothing may be skipped. torch comes first: the build named here needs no GPU where CI runs.
if [ -n "${CI:-}" ] || [ "${1:-}" = capture ]; then
    python -c "import torch, transformers, pyarrow" 2>/dev/null || {
        echo "Installing torch and transformers into .venv ..."
        python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
        python -m pip install --quiet --disable-pip-version-check -e ".[capture,parquet]"
    }
fi

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
