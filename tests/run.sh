#!/bin/sh
# Run by `./dev test`: all tests (unit, contract, golden, and end to end with the real clients). Arguments are passed to
# pytest. `./dev check` runs the static checks; CI runs both. gcloud is optional: its tests are skipped without it.
set -eu
cd "$(dirname "$0")/.."
if ! command -v gcloud >/dev/null 2>&1; then
    echo "NOTE: gcloud is not installed; its tests are SKIPPED." >&2
fi
# The tests of container images build their images, but need podman to serve them.
if ! command -v podman >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing podman for the tests of container images ..." >&2
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends podman crun; } >/dev/null 2>&1 ||
            echo "NOTE: podman cannot be installed here; the tests of container images are SKIPPED." >&2
    else
        echo "NOTE: podman is not installed here; the tests of container images are SKIPPED." >&2
    fi
fi
# The tests of the Slurm engine start a real cluster, with namespaces as nodes.
if ! command -v slurmctld >/dev/null 2>&1 && ! [ -x /usr/sbin/slurmctld ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing slurm-wlm, munge and iproute2 for the tests of the Slurm engine ..." >&2
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge iproute2; } >/dev/null 2>&1 ||
            echo "NOTE: Slurm cannot be installed here; the tests of the Slurm engine are SKIPPED." >&2
    else
        echo "NOTE: Slurm is not installed here; the tests of the Slurm engine are SKIPPED." >&2
    fi
fi
# The tests of the console drive a real browser.
if ! command -v chromium-headless-shell >/dev/null 2>&1 && ! command -v chromium >/dev/null 2>&1; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing chromium for the tests of the console ..." >&2
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell; } >/dev/null 2>&1 ||
            echo "NOTE: chromium cannot be installed here; the console's tests in a browser are SKIPPED." >&2
    else
        echo "NOTE: chromium is not installed here; the console's tests in a browser are SKIPPED." >&2
    fi
fi
# The space for environments with PyTorch and TensorFlow, and for files of the tests.
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
if [ $# -eq 0 ] && [ "$free" -lt 12 ]; then
    echo "NOTE: only $free GB are free, and the tests need about 12 GB. Free some space if they fail." >&2
fi
# nproc honors OMP_NUM_THREADS.
processors=$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
# The algorithms are designed for one thread (docs/adr/0018). More threads in parallel processes only slow each other down.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# `./dev test --repeat` reads the failures from this report (tests/repeat.py).
report=${TRAINSHED_TEST_REPORT:+--junitxml=$TRAINSHED_TEST_REPORT}
if [ $# -ne 0 ]; then
    exec .venv/bin/python -m pytest ${report:+"$report"} "$@"
fi
# The first run in a checkout rewrites the assertions of all tests, in two processes, and builds the environments of jobs.
# Otherwise each worker would rewrite all assertions.
if ! ls tests/unit/__pycache__/*-pytest-*.pyc >/dev/null 2>&1; then
    began=$(date +%s)
    .venv/bin/python -m pytest --collect-only -qq tests/unit >/dev/null 2>&1 &
    .venv/bin/python -m pytest --collect-only -qq --ignore tests/unit >/dev/null 2>&1 &
    # If this fails, a test reports the error.
    .venv/bin/python -m tests.prepare || true
    wait
    printf 'Set-up for the first run of the tests in this checkout: %s s.\n' "$(($(date +%s) - began))" >&2
fi
# used: CPU seconds used by all processes of this machine.
used() { awk -v hertz="$(getconf CLK_TCK)" '/^cpu / { printf "%d", ($2 + $3 + $4 + $7 + $8) / hertz }' /proc/stat 2>/dev/null || echo 0; }
began=$(date +%s) used=$(used)
# On a disk a fifth of the CPU time is spent on directories, journals and syncs. With permission to mount, the tests' files
# are therefore in memory (docs/adr/0054). Files of passed tests are deleted immediately, so a few hundred megabytes exist
# at a time. Files of failed tests are deleted at the end of the run.
memory=$(awk '/^MemAvailable/ { printf "%d", $2 / 1048576 }' /proc/meminfo 2>/dev/null || echo 0)
if [ "$(id -u)" -eq 0 ] && [ "${memory:-0}" -ge 8 ] && [ -z "${PYTEST_DEBUG_TEMPROOT:-}${TRAINSHED_TEST_SOAKS:-}" ]; then
    # A short path: paths of sockets have at most a hundred characters.
    place=$(mktemp -d "${TMPDIR:-/tmp}/t-XXXXXX")
    trap 'umount -l "$place" 2>/dev/null || true; rmdir "$place" 2>/dev/null || true' EXIT
    trap 'exit 130' HUP INT TERM
    if mount -t tmpfs -o size=4g,mode=755 trainshed-tests "$place" 2>/dev/null; then
        export PYTEST_DEBUG_TEMPROOT="$place"
    fi
fi
# The tests mostly wait for real processes, so there are three more workers than CPUs.
# Soaks take minutes each or repeat other tests at length. Only ./dev test-all runs them.
workers=$((processors + 3))
[ "$workers" -le 8 ] || workers=8
marks='not runtimes and not programs and not kubernetes and not soak'
[ -z "${TRAINSHED_TEST_SOAKS:-}" ] || marks='not runtimes and not programs and not kubernetes'
# A failure is never retried (docs/adr/0054). A crashed worker also fails the run: with a replacement the run would wait
# forever for the crashed worker's tests.
.venv/bin/python -m pytest -m "$marks" --numprocesses "$workers" --max-worker-restart 0 --dist loadfile \
    --no-loadscope-reorder --durations 20 ${report:+"$report"} && code=0 || code=$?
took=$(($(date +%s) - began)) busy=$(($(used) - used))
# Listed because a test may accidentally build a large environment, which takes minutes.
printf '\nEnvironments in the cache of the tests:\n%s\n' "$(ls build/test-cache/environments 2>/dev/null)" >&2
printf '\n%s s of wall time, %s s of CPU time: %s of %s CPUs were busy on average.\n' \
    "$took" "$busy" "$(awk "BEGIN { printf \"%.1f\", $busy / ($took + 0.01) }")" "$processors" >&2
exit "$code"
