#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lint, types, the documentation site, tests with
# and without the JIT.
# Usage: bash scripts/check.sh [quick|full|capture|lowest|newest]
#   quick    format, lint, types, and the tests of the default tier that are neither golden results nor a
#            contract of schemes and start no processes, for while one works
#   full     both tiers of tests: in the place of one case of each kind many cases, long runs, statistics,
#            clusters, every page of the documentation (tests/oracle/tiers.py), which CI always runs;
#            and what a release waits for: all rows of long tables of measurements, many random inputs
#   capture  installs torch and transformers first; without them the tests of capture are skipped;
#            and runs these tests with the lowest transformers too
#   lowest   nothing but tests of what uses libraries with the lowest versions that pyproject.toml allows,
#            and that results are the same bytes with them
#   newest   nothing but tests of the engine with the newest numba, under both compilers (replay/engine/backend)
set -euo pipefail
# pip would compile all of torch and transformers, half a minute, of which the tests import little.
export PIP_COMPILE=0
source "$(dirname "$0")/_venv.sh" dev
# With nothing kept, each test process and each command that a test starts would read all sources
# anew: seven seconds of each process only for the tests themselves.
unset PYTHONDONTWRITEBYTECODE

processes=2  # of tests

# Usage: results BIN FOLDER    Writes results, traces' identities and a sweep into a folder.
results() {
    mkdir "$2"
    (
        cd "$2"
        "$1/moereplay" compare gpt-oss-20b-decode --layer 0 --json recorded.json
        "$1/moereplay" trace generate zipf --skew 0.8 --model dysharp-l --layers 2 \
            --tokens-per-rank 64 --out zipf.h5
        "$1/moereplay" compare zipf.h5 --pass training --json zipf.json
        "$1/moereplay" trace generate latent --model gpt-oss-20b --layers 2 \
            --tokens-per-rank 32 --steps 4 --phase decode --out latent.h5
        "$1/moereplay" compare latent.h5 --steps 4 --json latent.json
        "$1/moereplay" tensor compare --model llama-2-7b --tp 4 --tokens 128 --json sliced.json
        "$1/moereplay" sweep "$root/tests/data/versions.toml" --out sweep
        # The files name the versions that wrote them; what a trace is does not depend on them.
        "$1/python" -c 'import tracegen; print(*(tracegen.load(f"{n}.h5").content_id for n in ("zipf", "latent")))' \
            > traces.txt
        # Neither do the rows of a study: Parquet's files name the library that wrote them.
        "$1/python" -c 'import pathlib, pyarrow.parquet as parquet
for part in sorted(pathlib.Path("sweep/results").rglob("*.parquet")):
    table = parquet.read_table(part)
    part.with_suffix(".txt").write_text(f"{[(field.name, str(field.type)) for field in table.schema]}\n{table.to_pylist()}\n")
    part.unlink()'
        rm ./*.h5
    ) > /dev/null
}

# Installs the lowest versions and compiles the kernels with them.
prepare_lowest() {
    local stamp=.venv-lowest/.moereplay-installed
    if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
        echo "Installing the lowest versions into .venv-lowest ..."
        rm -rf .venv-lowest
        # The lowest versions are those of the lowest Python: later ones have no wheels of them. They
        # are compiled here, for what old sources are warned of would be an error in the tests.
        uv venv --quiet --python 3.11 .venv-lowest
        uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
            --compile-bytecode -e ".[dev,parquet,plots,remote,sweep]"
        touch "$stamp"
    fi
    # Code compiled by another llvmlite is thrown away: without a place of its own each run of one
    # set of versions would compile anew what the other had just compiled.
    NUMBA_CACHE_DIR="$root/.venv-lowest/numba" .venv-lowest/bin/python -c "$compile"
}

# The newest numba, release candidates too, in a folder beside the present one.
newest() {
    echo "== tests of the engine, newest numba"
    local folder=$root/.venv-newest-numba
    rm -rf "$folder"
    uv pip install --quiet --python .venv/bin/python --prerelease allow --upgrade --target "$folder" numba
    with_newest() {
        PYTHONPATH=$folder NUMBA_CACHE_DIR=$folder/kernels MOEREPLAY_COMPILER=$1 \
            pytest -q -n $processes --dist worksteal tests/replay/engine
    }
    with_newest standard
    if with_newest quick; then
        echo "Both compilers are right with it: TRIED in replay/engine/backend/compiling.py may name it."
    else
        echo "The quick compiler is not right with it: see replay/engine/backend/BACKEND.md."
    fi
}

# Installs the lowest transformers, with what it needs, into a folder beside the present one.
prepare_lowest_capture() {
    local wanted stamp=.venv-lowest-capture/.moereplay-installed
    if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
        rm -rf .venv-lowest-capture
        wanted=$(python -c 'import tomllib
extra = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["capture"]
print(next(line for line in extra if line.startswith("transformers")))')
        uv pip install --quiet --python .venv/bin/python --resolution lowest-direct \
            --target .venv-lowest-capture "$wanted"
        touch "$stamp"
    fi
}

# torch, the project and the tests' tools are those of .venv: only transformers is another.
lowest_capture() {
    echo "== tests of capture, lowest transformers"
    local folder=$root/.venv-lowest-capture
    PYTHONPATH=$folder python -c "import sys, transformers
sys.exit(not transformers.__file__.startswith('$folder'))"
    PYTHONPATH=$folder CI=true python -m pytest -q -n $processes --dist worksteal --assert=plain \
        -m "not bench and not extended and not release" tests/tracegen/capture --ignore tests/tracegen/capture/test_interrupted.py
}

lowest() {
    echo "== tests, lowest versions"
    # Without CI, which demands torch. What this tier can find is that an older library lacks something
    # that the code uses of it, or does it otherwise: files, tables, plots, settings, the command line,
    # workers, and compiled kernels. Models compute the same whatever the versions, which the results
    # below show byte for byte. To rewrite every assertion for what one says where it fails would take
    # longer than most folders' tests.
    env -u CI NUMBA_CACHE_DIR="$root/.venv-lowest/numba" \
        .venv-lowest/bin/python -m pytest -q -n $processes --dist worksteal --assert=plain \
        tests/hwmodel tests/replay/cli tests/replay/engine tests/replay/sweeps tests/tracegen/cli \
        tests/tracegen/display tests/tracegen/file tests/tracegen/importers tests/tracegen/library \
        tests/tracegen/models tests/tracegen/trace --ignore tests/tracegen/display/test_html_browser.py
    echo "== results, lowest and present versions, and numba's own compiler"
    local place present standard
    place=$(mktemp -d)
    results "$root/.venv/bin" "$place/present" &
    present=$!
    MOEREPLAY_COMPILER=standard results "$root/.venv/bin" "$place/standard" &
    standard=$!
    NUMBA_CACHE_DIR=$root/.venv-lowest/numba results "$root/.venv-lowest/bin" "$place/lowest"
    wait $present
    wait $standard
    diff -r "$place/present" "$place/lowest"
    diff -r "$place/present" "$place/standard"
    rm -r "$place"
}

# Usage: tests ARGUMENT...    In CI nothing is kept of earlier runs, and to rewrite the assertions of all
# files, so that they say more, takes a tenth of what the tests do: those that fail are run again with it.
tests() {
    [ -n "${CI:-}" ] || { pytest -q -n $processes --dist worksteal "$@"; return; }
    pytest -q -n $processes --dist worksteal --assert=plain "$@" || {
        echo "== once more what failed, with what its assertions say"
        pytest -q --last-failed --last-failed-no-failures none "$@" || true
        return 1
    }
}

# What quick leaves out, beside the extended tier: golden results, contracts, and what starts processes.
quick() {
    echo "== tests, quick"
    tests tests \
        --ignore tests/golden --ignore tests/fuzz --ignore tests/bench --ignore tests/site \
        --ignore tests/replay/schemes/test_scheme_contract.py --ignore tests/replay/dense/test_contract.py \
        --ignore tests/replay/train/test_contract.py --ignore tests/replay/cli --ignore tests/replay/sweeps \
        --ignore tests/replay/validate --ignore tests/replay/uncertainty --ignore tests/tracegen/capture \
        --ignore tests/tracegen/cli --ignore tests/tracegen/display --ignore tests/tracegen/library \
        --ignore tests/tracegen/importers --ignore tests/tracegen/imitate \
        --ignore tests/replay/engine/test_kernel_cache.py --ignore tests/test_pages.py \
        --ignore tests/test_elsewhere.py --ignore tests/test_startup.py --ignore tests/test_strangers.py \
        --ignore tests/test_trust.py --ignore tests/test_mutants.py --ignore tests/test_packaging.py \
        --ignore tests/test_walk.py
}

# The engine's kernels are compiled once, before the tests: otherwise each test process would compile
# them, at the same time.
compile="from replay.engine.engine import compile_ahead; compile_ahead()"

if [ "${1:-}" = lowest ]; then
    prepare_lowest
    lowest
    echo "All checks passed."
    exit
fi

if [ "${1:-}" = newest ]; then
    newest
    echo "All checks passed."
    exit
fi

if [ "${1:-}" = quick ]; then
    python -c "$compile"
    echo "== format";     ruff format --check .
    echo "== lint";       ruff check .
    echo "== types, beside the tests"
    mypy &
    types=$!
    trap 'kill $types 2> /dev/null || true' EXIT
    quick
    wait $types
    echo "All quick checks passed."
    exit
fi

# In CI nothing may be skipped. The build of torch that is named here needs no GPU where CI runs.
with_capture=${CI:-}
[ "${1:-}" != capture ] || with_capture=true
install_capture() {
    if [ -n "$with_capture" ] && ! python -c "import torch, transformers, pyarrow" 2>/dev/null; then
        echo "Installing torch and transformers into .venv ..."
        pip_install "torch==2.13.0"
        pip_install -e ".[capture,parquet]"
    fi
}

# Reports are looked at in Debian's browser.
install_chromium() {
    if [ -n "${CI:-}" ] && ! { command -v chromium && command -v chromedriver; } > /dev/null; then
        echo "Installing chromium ..."
        as_root=$([ "$(id -u)" = 0 ] || echo sudo)
        $as_root apt-get -qq update
        $as_root apt-get -qq install --no-install-recommends chromium chromium-driver fonts-dejavu-core > /dev/null
    fi
}

# All but the tests of the present versions, one after the other in one process: beside those it leaves no
# core idle, and what it starts and imports it does once. A core that waited for the other, and second
# processes, would take a minute and a half.
beside() {
    set +m  # its processes end with it
    local processes=0
    export PYTEST_ADDOPTS="-o cache_dir=.pytest_cache/beside"
    echo "== types"; mypy; mypy scripts
    # Every link, reference and table of contents; in CI the pages are also written.
    echo "== site"; python scripts/site/build.py $([ -n "${CI:-}" ] || echo --check)
    # The kernels' source must also be right as plain Python: the same tests of the engine, JIT off. Exports
    # only read schedules, and the cache of compiled kernels is not used.
    echo "== tests, JIT off"
    NUMBA_DISABLE_JIT=1 tests tests/replay/engine \
        --ignore-glob "tests/replay/engine/test_export_*" --ignore tests/replay/engine/test_kernel_cache.py
    if [ -n "${CI:-}" ] && ! python -c "from replay.engine.backend.compiling import is_tried; raise SystemExit(not is_tried())"; then
        newest
    fi
    [ -z "$with_capture" ] || lowest_capture
    [ -z "${CI:-}" ] || lowest
}

# What the tests need is fetched and made ready first.
install_capture &
ready=$!
install_chromium &
ready="$ready $!"
if [ -n "${CI:-}" ]; then
    prepare_lowest &
    ready="$ready $!"
fi
echo "== format";     ruff format --check .
echo "== lint";       ruff check .
for one in $ready; do
    wait "$one"
done
python -c "$compile"
[ -z "$with_capture" ] || prepare_lowest_capture

said=$(mktemp)
set -m  # a group of its own, which ends with this script
beside > "$said" 2>&1 < /dev/null &
others=$!
set +m
finish() {
    kill -- -$others 2> /dev/null || true
    cat "$said"
    rm -f "$said"
    [ -z "$failed" ] || echo "Failed:$failed" >&2
}
failed=
trap finish EXIT
trap 'exit 130' INT
echo "== tests, beside types, site and other versions"
if [ "${1:-}" = full ]; then
    tests -m "not bench" || failed=" tests"
elif [ -n "${CI:-}" ]; then
    tests -m "not bench and not release" || failed=" tests"
else
    tests || failed=" tests"
fi
wait $others || failed="$failed beside the tests"
cat "$said"
: > "$said"
[ -z "$failed" ] || exit 1
echo "All checks passed."
