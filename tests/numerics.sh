#!/bin/sh
# Runs the numerical tests with the kernels of several processors, with one thread and with two: no promise may depend on
# the last bit of a product (docs/adr/0018). Arguments are passed to pytest; `-m numerical` includes the soaks.
set -u
cd "$(dirname "$0")/.."
kernels='Haswell Zen Sandybridge Nehalem'
if grep -q avx512vl /proc/cpuinfo 2>/dev/null; then kernels="SkylakeX $kernels"; fi
failed=''
for kernel in $kernels; do
    for threads in 1 2; do
        printf '\nNumerical tests with the kernels of %s, threads: %s\n' "$kernel" "$threads" >&2
        OPENBLAS_CORETYPE=$kernel OPENBLAS_NUM_THREADS=$threads OMP_NUM_THREADS=$threads .venv/bin/python -m pytest \
            -m 'numerical and not soak' --numprocesses 2 "$@" || failed="$failed $kernel/$threads"
    done
done
[ -z "$failed" ] || { printf '\nNumerical tests failed with (kernels/threads):%s\n' "$failed" >&2; exit 1; }
