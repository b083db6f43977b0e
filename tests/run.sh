#!/bin/sh
# What `./dev test` runs: every test: unit, contract, golden, and end to end with the real clients. Arguments go to
# pytest. The static checks are `./dev check`; CI runs both.
# Optional commands it uses where they are there: gcloud (its tests skip loudly without it).
set -eu
cd "$(dirname "$0")/.."
if ! command -v gcloud >/dev/null 2>&1; then
    echo "NOTE: gcloud is not installed here; the tests that run it are SKIPPED." >&2
fi
# The tests of container images make their images themselves, but need a tool to get them from.
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
# The tests of the Slurm engine bring up a real cluster of their own, on nodes made of namespaces.
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
# Environments with PyTorch and TensorFlow, and what the tests write.
free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
if [ $# -eq 0 ] && [ "$free" -lt 12 ]; then
    echo "NOTE: $free GB are free here, and the tests take about 12 GB; make room if they fail for lack of it." >&2
fi
# nproc says 1 where OMP_NUM_THREADS does.
processors=$(env -u OMP_NUM_THREADS nproc 2>/dev/null || echo 2)
# The algorithms are made for one thread (docs/adr/0018); several in each of three processes only wait for each other.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# Where `./dev test --repeat` reads what failed (tests/repeat.py).
report=${TRAINSHED_TEST_REPORT:+--junitxml=$TRAINSHED_TEST_REPORT}
if [ $# -ne 0 ]; then
    exec .venv/bin/python -m pytest ${report:+"$report"} "$@"
fi
# What only the first run in a checkout does, and later ones find: assertions are rewritten (each worker would do it
# for all the tests), half of them on each processor, and environments of jobs are made.
if ! ls tests/unit/__pycache__/*-pytest-*.pyc >/dev/null 2>&1; then
    began=$(date +%s)
    .venv/bin/python -m pytest --collect-only -qq tests/unit >/dev/null 2>&1 &
    .venv/bin/python -m pytest --collect-only -qq --ignore tests/unit >/dev/null 2>&1 &
    # A test says what is wrong when this does not work.
    .venv/bin/python -m tests.prepare || true
    wait
    printf 'Set-up for the first run of the tests in this checkout: %s s.\n' "$(($(date +%s) - began))" >&2
fi
# used: seconds in which one of this machine's processors computed, by whomever.
used() { awk -v hertz="$(getconf CLK_TCK)" '/^cpu / { printf "%d", ($2 + $3 + $4 + $7 + $8) / hertz }' /proc/stat 2>/dev/null || echo 0; }
began=$(date +%s) used=$(used)
# On a disk a fifth of the processor's time goes into directories, journals and what is forced to it; so whoever may
# mount has the tests' files in memory (docs/adr/0054). Those of tests that pass are deleted at once, and a few hundred
# megabytes are there at a time; those of tests that fail go with the run.
memory=$(awk '/^MemAvailable/ { printf "%d", $2 / 1048576 }' /proc/meminfo 2>/dev/null || echo 0)
if [ "$(id -u)" -eq 0 ] && [ "${memory:-0}" -ge 8 ] && [ -z "${PYTEST_DEBUG_TEMPROOT:-}${TRAINSHED_TEST_SOAKS:-}" ]; then
    # Short: sockets below it have names of a hundred characters at most.
    place=$(mktemp -d "${TMPDIR:-/tmp}/t-XXXXXX")
    trap 'umount -l "$place" 2>/dev/null || true; rmdir "$place" 2>/dev/null || true' EXIT
    trap 'exit 130' HUP INT TERM
    if mount -t tmpfs -o size=4g,mode=755 trainshed-tests "$place" 2>/dev/null; then
        export PYTEST_DEBUG_TEMPROOT="$place"
    fi
fi
# Much of the time goes into waiting for real processes, so files are run three more at a time than there are processors.
# Soaks take minutes each, or prove at length what other tests prove in short; they are for ./dev test-all.
workers=$((processors + 3))
[ "$workers" -le 8 ] || workers=8
marks='not runtimes and not programs and not kubernetes and not soak'
[ -z "${TRAINSHED_TEST_SOAKS:-}" ] || marks='not runtimes and not programs and not kubernetes'
# What fails fails the run: nothing is asked a second time (docs/adr/0054). So does a worker that crashes; with another
# in its place the run would wait for ever for what it had still to do.
.venv/bin/python -m pytest -m "$marks" --numprocesses "$workers" --max-worker-restart 0 --dist loadfile \
    --no-loadscope-reorder --durations 20 ${report:+"$report"} && code=0 || code=$?
took=$(($(date +%s) - began)) busy=$(($(used) - used))
# One of gigabytes that a job of some test began to build costs minutes, and no test says so.
printf '\nEnvironments in the cache of the tests:\n%s\n' "$(ls build/test-cache/environments 2>/dev/null)" >&2
printf '\n%s s, in which the processors of this machine computed for %s s: %s of %s all the time.\n' \
    "$took" "$busy" "$(awk "BEGIN { printf \"%.1f\", $busy / ($took + 0.01) }")" "$processors" >&2
exit "$code"
