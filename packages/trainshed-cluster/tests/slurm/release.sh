#!/bin/sh
# What `./dev test-slurm` runs: the tests of the Slurm engine, with the Slurm of another Debian release than this
# machine's: ./dev test-slurm trixie [ARG for pytest ...]. The first run gets its packages (some 300 MB). As root.
set -eu
cd "$(dirname "$0")/../../../.."
if [ $# -eq 0 ]; then
    echo "usage: ./dev test-slurm RELEASE [ARG ...], such as: ./dev test-slurm trixie" >&2
    exit 2
fi
release=$1
shift
# Nodes of the lab have a /tmp of their own: what they run lies elsewhere.
home=${TRAINSHED_TEST_SLURM_HOME:-/var/cache/trainshed-tests}/slurm-$release
if ! [ -e "$home/made" ]; then
    echo "Getting the Slurm of Debian $release, once, into $home ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends debootstrap patchelf slurm-wlm munge iproute2; } >/dev/null
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep '/debian/$' | sort -u | head -n 1)
    rm -rf "$home"
    mkdir -p "$home/programs"
    debootstrap --variant=minbase --include=slurm-wlm "$release" "$home/system" "$mirror" >"$home/log" ||
        { tail -n 5 "$home/log" >&2; exit 1; }
    libraries=$home/system/usr/lib/x86_64-linux-gnu
    for name in salloc srun squeue scontrol sinfo scancel sbatch slurmctld slurmd slurmstepd; do
        for found in "$home"/system/usr/bin/$name "$home"/system/usr/sbin/$name-wlm; do
            [ -x "$found" ] && cp -L "$found" "$home/programs/$name"
        done
        # They run beside the programs of this machine, with that release's C library.
        patchelf --set-interpreter "$libraries/ld-linux-x86-64.so.2" --force-rpath \
            --set-rpath "$libraries/slurm-wlm:$libraries" "$home/programs/$name"
    done
    : >"$home/made"
fi
"$home/programs/slurmd" -V >&2
TRAINSHED_TEST_SLURM=$home exec .venv/bin/python -m pytest "${@:-packages/trainshed-cluster/tests/slurm}"
