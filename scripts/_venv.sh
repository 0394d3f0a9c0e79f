# Sourced by check.sh and demo.sh: makes .venv on first use and installs the project into it.
# Usage: source scripts/_venv.sh [EXTRA]    EXTRA: a pip extra, such as dev
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
"$python" - <<'PY' || exit 2
import sys
if sys.version_info < (3, 11):
    sys.exit(f"moereplay needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=...")
PY
[ -x .venv/bin/python ] || "$python" -m venv .venv
# Installing again costs seconds, so do it only when what is to be installed has changed.
extra=${1:-}
stamp=.venv/.moereplay-installed${extra:+-$extra}
if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "Installing moereplay${extra:+ with the $extra extra} into .venv ..."
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".${extra:+[$extra]}"
    touch "$stamp"
fi
export PATH="$root/.venv/bin:$PATH"
