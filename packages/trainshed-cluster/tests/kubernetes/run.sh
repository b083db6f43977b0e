#!/bin/sh
# What `./dev test-kubernetes` runs: the Kubernetes engine on a real cluster of this machine's own (packages/trainshed-cluster/tests/kubernetes/lab.py),
# all of its tests, in a quarter of an hour, or those that are named (`./dev test-kubernetes packages/trainshed-cluster/tests/kubernetes/test_images.py`).
# Installs the Debian packages that it needs if it may, and builds the cluster's binaries once, into the user's cache.
set -eu
cd "$(dirname "$0")/../../../.."
cache=${TRAINSHED_TEST_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/trainshed-tests/kubernetes-1.20.2-2}
# Only packages of what is missing: a kubectl of somebody else's package lets none of them be installed.
missing=
for pair in etcd:etcd-server dockerd:docker.io kubectl:kubernetes-client ip:iproute2; do
    command=${pair%%:*}
    command -v "$command" >/dev/null 2>&1 || [ -x "/usr/sbin/$command" ] || missing="$missing ${pair#*:}"
done
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    if [ -n "$missing" ]; then
        echo "Installing for the lab:$missing ..." >&2
        export DEBIAN_FRONTEND=noninteractive
        # Each word is a package.
        # shellcheck disable=SC2086
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 || true
    fi
    if [ ! -x "$cache/kubelet" ]; then
        echo "Building Kubernetes 1.20.2 into $cache, which takes some 10 minutes once ..." >&2
        sh packages/trainshed-cluster/tests/kubernetes/build_binaries.sh "$cache"
    fi
fi
export TRAINSHED_TEST_KUBERNETES="$cache"
# Files and tests that are named are what is run, options alone go with all of them.
for argument in "$@"; do
    case "${argument%%::*}" in
        -*) ;;
        *) if [ -e "${argument%%::*}" ]; then
            exec .venv/bin/python -m pytest -m kubernetes -rs "$@"
        fi ;;
    esac
done
exec .venv/bin/python -m pytest -m kubernetes -rs packages/trainshed-cluster/tests/kubernetes "$@"
