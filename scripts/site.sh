#!/usr/bin/env bash
# Makes the documentation site in build/site.
# Usage: bash scripts/site.sh [--out FOLDER] [--fresh]
set -euo pipefail
source "$(dirname "$0")/_venv.sh" docs
python scripts/site/build.py "$@"
