#!/bin/sh
# Builds what the lab's cluster is made of, once: kube-apiserver, kube-scheduler, kube-controller-manager and
# kubelet 1.20.2, from the source package `kubernetes` of Debian 12, which vendors all it needs (its binary package
# has kubectl alone). Needs root for its packages, 3 GB of disk and some 7 minutes of one processor.
#   build_binaries.sh DIRECTORY
set -eu
out=$1
case "$out" in /*) ;; *) out=$(pwd)/$out ;; esac
[ -x "$out/kubelet" ] && exit 0
mkdir -p "$out"
# One build at a time; who waited finds it done.
exec 9>"$out/.lock"
flock 9
[ -x "$out/kubelet" ] && exit 0
work=$(mktemp -d "${TMPDIR:-/tmp}/trainshed-kubernetes-XXXXXX")
trap 'rm -rf "$work"' EXIT
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends golang-go rsync make dpkg-dev >/dev/null
# The machine's own package sources as entries for sources, with a state of their own.
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/parts"
sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/apt/parts/debian.sources"
set -- -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/apt/parts" \
    -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root
cd "$work"
apt-get "$@" update -qq
apt-get "$@" source -qq --download-only kubernetes
tar xzf kubernetes_*.orig.tar.gz
cd kubernetes-1.20.2
# Its way to look through maps, of before Go 1.18, writes past what that has room for: the API server died of objects
# without a Go type (custom resources, patches of webhooks).
reflect2=vendor/github.com/modern-go/reflect2
sed -i 's/^func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer) \*hiter$/func mapiterinit(rtype unsafe.Pointer, m unsafe.Pointer, it *hiter)/
s|^\t// rest fields are ignored$|\trest [6]unsafe.Pointer; numbers [5]uintptr|' "$reflect2/unsafe_link.go"
sed -i 's/^func (type2 \*UnsafeMapType) UnsafeIterate(.*{$/&\n\tvar it hiter\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), \&it)/
s/mapiterinit(type2.rtype, \*(\*unsafe.Pointer)(obj)),$/\&it,/' "$reflect2/unsafe_map.go"
mkdir -p .go/src/k8s.io
ln -sfn ../../.. .go/src/k8s.io/kubernetes
cat >"$work/version" <<'TEXT'
KUBE_GIT_COMMIT='debian'
KUBE_GIT_TREE_STATE='clean'
KUBE_GIT_VERSION='v1.20.2'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
TEXT
unset GOFLAGS
PATH=/usr/lib/go/bin:$PATH GOPATH=$PWD/.go GO111MODULE=off CGO_ENABLED=0 HOME=$work GOCACHE=$work/cache \
    KUBE_GIT_VERSION_FILE=$work/version nice -n 10 make \
    WHAT="cmd/kube-apiserver cmd/kube-scheduler cmd/kube-controller-manager cmd/kubelet" >&2
# The kubelet last: who finds it finds all.
for name in kube-apiserver kube-scheduler kube-controller-manager kubelet; do
    cp "$(ls _output/local/bin/linux/*/$name)" "$out/.$name"
    mv "$out/.$name" "$out/$name"
done
