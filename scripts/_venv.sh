# Sourced by check.sh and demo.sh: makes .venv on first use and installs the project into it.
# Usage: source scripts/_venv.sh [EXTRA]    EXTRA: a pip extra, such as dev
# PYTHON names the Python to use; without it the first that is new enough is taken.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

python=${PYTHON:-}
if [ -z "$python" ]; then
    for python in python3 python python3.14 python3.13 python3.12 python3.11; do
        is_new_enough "$python" && break
    done
fi
is_new_enough "$python" || {
    echo "moereplay needs Python 3.11 or newer; ${PYTHON:-what is on the PATH} is not. Set PYTHON=..." >&2
    return 2
}

# A venv that these scripts made holds `made` with the place it was made for: a moved venv is
# broken. It holds `unfinished` while something is installed: what an interrupted pip left behind
# can look complete to the next one. A venv of somebody else's making is never deleted.
is_half_made() {
    [ -e .venv/.moereplay-made ] || return 1
    [ -e .venv/.moereplay-unfinished ] || [ "$(cat .venv/.moereplay-made)" != "$root" ] ||
        ! .venv/bin/python -c "import pip" 2>/dev/null
}

# Usage: pip_install ARGUMENT...    what `pip install` takes; into .venv
# Python compiles the modules that it imports; pip would compile five times as many, tests of numba and all.
later=
[ -n "${PYTHONDONTWRITEBYTECODE:-}" ] || later=--no-compile
pip_install() {
    touch .venv/.moereplay-unfinished &&
        .venv/bin/python -m pip install --quiet --disable-pip-version-check $later "$@" &&
        rm .venv/.moereplay-unfinished
}

# Makes .venv with the pip that comes with Python: by Python's own pip, where there is one; venv's way compiles all of it.
make_venv() {
    local wheels
    wheels=$("$python" -c 'import ensurepip; print(ensurepip.__path__[0])' 2>/dev/null)/_bundled
    {
        "$python" -m venv --without-pip .venv &&
            "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check $later --no-index \
                --find-links "$wheels" pip
    } > /dev/null 2>&1 || "$python" -m venv .venv
}

# One at a time, where there is flock: two would install into, or delete, the same folder.
if command -v flock > /dev/null; then
    exec 9< "$root"
    flock 9
fi
if is_half_made; then
    echo "The venv in .venv is half-made or moved: making it anew ..."
    rm -rf .venv
fi
if [ ! -e .venv ]; then
    mkdir .venv
    echo "$root" > .venv/.moereplay-made
    touch .venv/.moereplay-unfinished
    make_venv || return 1
fi
.venv/bin/python -c "import pip" 2>/dev/null || {
    echo "There is no Python with pip in .venv, which was not made here: remove it, and start again." >&2
    return 2
}
# Installing again costs seconds, so do it only when what is to be installed has changed.
extra=${1:-}
stamp=.venv/.moereplay-installed${extra:+-$extra}
if [ -e .venv/.moereplay-unfinished ] || [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
    echo "Installing moereplay${extra:+ with the $extra extra} into .venv ..."
    if [ "$extra" = dev ] && [ -n "${CI:-}" ]; then
        # uv takes a sixth of pip's time, but reads neither pip.conf nor PIP_*: pip installs where it finds nothing.
        pip_install uv && touch .venv/.moereplay-unfinished || return 1
        if .venv/bin/uv pip install --quiet --python .venv/bin/python -e ".[dev]"; then
            rm .venv/.moereplay-unfinished
        else
            pip_install -e ".[dev]" || return 1
        fi
    else
        pip_install -e ".${extra:+[$extra]}" || return 1
    fi
    touch "$stamp"
fi
if command -v flock > /dev/null; then
    exec 9<&-
fi
export PATH="$root/.venv/bin:$PATH"
