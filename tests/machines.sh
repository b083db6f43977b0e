#!/bin/sh
# Run by `./dev test-machines`: tests services on virtual machines with cgroup v2 and systemd. Needs root and an x86-64
# Debian. Installs the required Debian packages if it can. Keeps a Debian in build/machines.
set -eu
cd "$(dirname "$0")/.."
missing=
for pair in linux.uml:user-mode-linux debootstrap:debootstrap mke2fs:e2fsprogs; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
if [ -n "$missing" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing for machines:$missing ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    # Each word is a package.
    # shellcheck disable=SC2086
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing; } >/dev/null 2>&1 || true
fi
TRAINSHED_TEST_MACHINE="$(pwd)/build/machines/debian"
export TRAINSHED_TEST_MACHINE
if ! [ -d "$TRAINSHED_TEST_MACHINE" ] || ! cmp -s locks/kubernetes.txt "$TRAINSHED_TEST_MACHINE/root/requirements.txt"; then
    echo "Building a Debian with the packages of the service and a runtime, once ..." >&2
    new="$TRAINSHED_TEST_MACHINE.new"
    rm -rf "$TRAINSHED_TEST_MACHINE" "$new"
    mkdir -p build/machines
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3-venv,ca-certificates,curl,procps,iproute2,kmod \
        bookworm "$new" >build/machines/debootstrap.log
    mkdir -p "$new/lib/modules"
    cp -r /usr/lib/uml/modules/* "$new/lib/modules/"
    echo "/dev/ubda / ext4 defaults 0 1" >"$new/etc/fstab"
    echo "127.0.0.1 localhost" >"$new/etc/hosts"
    # The settings for the package index on this machine.
    cp /etc/ssl/certs/ca-certificates.crt "$new/etc/ssl/certs/"
    cp -L /etc/resolv.conf "$new/etc/"
    [ ! -f /etc/pip.conf ] || cp /etc/pip.conf "$new/etc/"
    cp locks/kubernetes.txt "$new/root/requirements.txt"
    .venv/bin/python -c 'import pathlib, sys; from tools import release; release.build(pathlib.Path(sys.argv[1]))' "$new/root/dist"
    env -u PIP_FIND_LINKS -u UV_FIND_LINKS HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$new" sh -eu <<'END' >build/machines/install.log 2>&1
mount -t proc proc /proc
trap 'umount /proc' EXIT
systemctl mask systemd-timesyncd apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer getty@tty1
apt-get update -qq
apt-get install -y -qq --no-install-recommends podman crun uidmap netavark fuse-overlayfs
apt-get clean
useradd --system --create-home --home-dir /var/lib/trainshed --shell /usr/sbin/nologin trainshed
useradd --create-home --shell /bin/bash ana
python3 -m venv /opt/trainshed
/opt/trainshed/bin/pip install --quiet --require-hashes -r /root/requirements.txt
/opt/trainshed/bin/pip install --quiet --no-deps --no-index --find-links /root/dist trainshed trainshed-cluster trainshed-console trainshed-pipelines trainshed-reduction trainshed-tracking
ln -s /opt/trainshed/bin/trainshed /usr/local/bin/trainshed
mkdir /srv/cache
chown trainshed /srv/cache
runuser -u trainshed -- env HOME=/var/lib/trainshed TRAINSHED_CACHE=/srv/cache trainshed runtimes build scikit-learn=1.6+slim
END
    mv "$new" "$TRAINSHED_TEST_MACHINE"
fi
exec .venv/bin/python -m pytest -rs --durations 5 tests/e2e/test_machines.py "$@"
