#!/bin/sh
# Runs unit and API tests with the lowest versions that pyproject.toml allows, or with the newest (--newest), in a separate
# environment below build/. Other arguments are passed to pytest.
set -eu
cd "$(dirname "$0")/.."
resolution=lowest-direct
if [ "${1:-}" = --newest ]; then
    resolution=highest
    shift
fi
place=build/versions-$resolution
uv=.venv/bin/uv
eval "$(.venv/bin/python -c 'import os, shlex, sys
sys.path.insert(0, "packages/trainshed/src")
from trainshed.runtimes.indexes import index_environment
for name, value in index_environment(os.environ).items(): print(f"export {name}={shlex.quote(value)}")')"
mkdir -p build
# Use the oldest Python if available: newer ones have no wheels for many of the lowest versions.
"$uv" venv --quiet --clear --python "$(command -v python3.11 || echo .venv/bin/python)" "$place"
"$uv" pip compile --quiet --python "$place/bin/python" --resolution "$resolution" --no-emit-index-url \
    --extra remote --extra console --extra kubernetes --extra tracking $(printf -- '--no-emit-package %s ' $(ls packages)) \
    packages/trainshed/pyproject.toml --output-file "$place.txt" >/dev/null
# The test tools are as new as these versions allow.
"$uv" pip install --quiet --python "$place/bin/python" --constraint "$place.txt" --group dev \
    $(printf -- '--editable %s ' packages/*)
"$uv" pip install --quiet --python "$place/bin/python" -r "$place.txt"
printf 'Versions under test: %s.txt\n' "$place" >&2
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
[ $# -ne 0 ] || set -- tests/unit tests/contract/api
# Google's libraries warn about the end of support for these versions.
exec "$place/bin/python" -m pytest -W ignore::FutureWarning --numprocesses 4 --dist loadfile "$@"
