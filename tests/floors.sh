#!/bin/sh
# The unit tests and those of the APIs against the lowest versions of every requirement that pyproject.toml allows, or
# against the newest (--newest), in an environment of its own below build/. Other arguments go to pytest.
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
# The floors are those of the oldest Python, where there is one: newer ones have no wheels of many of them.
"$uv" venv --quiet --clear --python "$(command -v python3.11 || echo .venv/bin/python)" "$place"
"$uv" pip compile --quiet --python "$place/bin/python" --resolution "$resolution" --no-emit-index-url \
    --extra remote --extra console --extra kubernetes --extra tracking $(printf -- '--no-emit-package %s ' $(ls packages)) \
    packages/trainshed/pyproject.toml --output-file "$place.txt" >/dev/null
# What tests with is as new as these let it be.
"$uv" pip install --quiet --python "$place/bin/python" --constraint "$place.txt" --group dev \
    $(printf -- '--editable %s ' packages/*)
"$uv" pip install --quiet --python "$place/bin/python" -r "$place.txt"
printf 'Versions under test: %s.txt\n' "$place" >&2
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
[ $# -ne 0 ] || set -- tests/unit tests/contract/api
# Google's libraries announce when they will support these versions no more.
exec "$place/bin/python" -m pytest -W ignore::FutureWarning --numprocesses 4 --dist loadfile "$@"
