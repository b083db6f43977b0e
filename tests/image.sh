#!/bin/sh
# What `./dev test-image` runs: the image of the service, built of a Debian made here, and services in it. Needs root;
# installs the Debian packages that it needs if it may.
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
# As public images of Debian are: without manuals and translations.
TRAINSHED_TEST_BASE="$(pwd)/build/debian-trixie.tar"
export TRAINSHED_TEST_BASE
if ! [ -f "$TRAINSHED_TEST_BASE" ]; then
    echo "Making a Debian of packages, once ..." >&2
    mkdir -p build
    mmdebstrap --quiet --variant=minbase --include=ca-certificates --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        trixie "$TRAINSHED_TEST_BASE.new.tar"
    mv "$TRAINSHED_TEST_BASE.new.tar" "$TRAINSHED_TEST_BASE"
fi
exec .venv/bin/python -m pytest -rs --durations 5 tests/e2e/test_image.py "$@"
