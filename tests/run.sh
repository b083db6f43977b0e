#!/bin/sh
# Runs every test: unit, contract, golden, then end to end with the real clients.
# Optional commands it uses where they are there: gcloud (its tests skip loudly without it).
set -eu
cd "$(dirname "$0")/.."
if ! command -v gcloud >/dev/null 2>&1; then
    echo "NOTE: gcloud is not installed here; the tests that run it are SKIPPED." >&2
fi
exec .venv/bin/python -m pytest "$@"
