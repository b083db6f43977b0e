#!/bin/sh
# Run by `./dev test-image`: builds the image of the service on a local Debian base, and tests services in it. Needs root.
# Installs the required Debian packages if it can.
set -eu
cd "$(dirname "$0")/.."
missing=
for pair in podman:podman runc:runc mmdebstrap:mmdebstrap; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing for the image:$missing ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    # Each word is a package.
    # shellcheck disable=SC2086
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 || true
fi
# Like public Debian images: without manuals and translations.
TRAINSHED_TEST_BASE="$(pwd)/build/debian-trixie.tar"
export TRAINSHED_TEST_BASE
if ! [ -f "$TRAINSHED_TEST_BASE" ]; then
    echo "Building a Debian base image, once ..." >&2
    mkdir -p build
    mmdebstrap --quiet --variant=minbase --include=ca-certificates --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        trixie "$TRAINSHED_TEST_BASE.new.tar"
    mv "$TRAINSHED_TEST_BASE.new.tar" "$TRAINSHED_TEST_BASE"
fi
exec .venv/bin/python -m pytest -rs --durations 5 tests/e2e/test_image.py "$@"
