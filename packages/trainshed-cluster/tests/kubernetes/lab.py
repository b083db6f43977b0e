"""A real Kubernetes cluster on one machine: etcd, API server, scheduler and controller manager on the hub, a
dockerd and a kubelet on each node.

With Debian's packages etcd-server, docker.io, kubernetes-client and iproute2, and binaries that
`build_binaries.sh` makes, as root. Nodes are machines of `tests.slurm.nodes`: each has its own processes,
network and control groups, can lose its power and be cut off.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.commands import execute
from tests.kubernetes import rootfs
from tests.slurm.nodes import HUB, Machines, tree, until

VERSION = "1.20.2"
IMAGE = "trainshed-lab:1"
ADMIN, SERVICE = "lab-admin", "lab-service"
"""Tokens: of who may do everything, and of who may do what he is bound to."""
LEASE = 8
"""Seconds after which a node that renews its lease no more is not heard of, at least."""
_BINARIES = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
_COMMANDS = ("etcd", "dockerd", "runc", "ip", "nsenter", "unshare", "kubectl", "ldd")
_DOCKER = "/usr/bin/docker"
_SOCKET = "unix:///tmp/docker.sock"
"""Of few letters, as sockets' paths must be; nodes have a /tmp of their own."""
_CGROUPS = Path("/sys/fs/cgroup")


def binaries() -> Path:
    """Where they are, or are to be built."""
    if path := os.environ.get("TRAINSHED_TEST_KUBERNETES"):
        return Path(path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return cache / "trainshed-tests" / f"kubernetes-{VERSION}-2"


def why_not() -> str | None:
    """Why the lab cannot be had here; None: it can."""
    if os.geteuid() != 0:
        return "needs root, for nodes of namespaces"
    if not (_CGROUPS / "memory" / "cgroup.procs").exists():
        return "needs control groups of version 1, which the lab's old kubelet knows alone"
    if missing := [name for name in _COMMANDS if not shutil.which(name, path=_search_path())]:
        return (
            "needs the Debian packages etcd-server, docker.io, kubernetes-client and iproute2: no "
            f"{', '.join(missing)}"
        )
    if missing := [name for name in _BINARIES if not (binaries() / name).exists()]:
        return f"needs {', '.join(missing)} in {binaries()}: `./dev test-kubernetes` builds them"
    return None


class KubernetesLab(Machines):
    """Nodes node1 and node2. Use as a context manager: what it is left with is gone."""

    def __init__(self, directory: Path, shown: Sequence[Path] = ()) -> None:
        super().__init__(directory, ["node1", "node2"], shown)
        self.kubeconfig = directory / "admin.json"
        #: Of who has but the rights that a test has given him.
        self.service_kubeconfig = directory / "service.json"
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "KubernetesLab":
        for name in ("log", "pki", "etcd", "rootfs"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        rootfs.make(self.directory / "rootfs")
        self._write_configuration()
        super().__enter__()
        try:
            for name in self.nodes:
                self._connect(name)
            self.start_etcd()
            for name in self.nodes:
                self._start_docker(name)
            self.start_api()
            self.start_controllers()
            for name in self.nodes:
                self._load_image(name)
                self.start_kubelet(name)
            self.await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running.values()):
            self.kill(process, signal.SIGKILL)
        super().__exit__()

    # --- what is asked of it ---

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """What kubectl prints."""
        done = execute(
            *("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments), input=stdin, timeout=60
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(
                done.returncode, arguments, f"{done.stdout}\n{done.stderr}"
            )
        return done.stdout

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> None:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=listed)

    def get(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get` finds."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def ready(self) -> set[str]:
        """Names of the nodes that are."""
        try:
            lines = self.kubectl("get", "nodes", "--no-headers").splitlines()
        except subprocess.CalledProcessError:
            return set()
        words = [line.split() for line in lines]
        return {name for name, state, *_ in words if state.split(",")[0] == "Ready"}

    def await_ready(self) -> None:
        try:
            for _ in until("ready nodes, and an account for Pods", 90):
                if self.ready() == set(self.nodes) and self._has_accounts():
                    return
        except TimeoutError as e:
            raise TimeoutError(f"{e}: {self.logs()}") from None

    def load(self, image: str, tar: Path, config: Mapping[str, Any]) -> None:
        """Have all nodes hold an image of these files, which says that of itself (`Entrypoint`, `Env`, …)."""
        words = {"Entrypoint": "ENTRYPOINT", "Cmd": "CMD"}
        changes = [f"{words[key]} {json.dumps(config[key])}" for key in words if key in config]
        changes += [f"ENV {variable}" for variable in config.get("Env", ())]
        changes += [f"WORKDIR {config['WorkingDir']}"] if "WorkingDir" in config else []
        options = [word for change in changes for word in ("--change", change)]
        for name in self.nodes:
            with tar.open("rb") as content:
                done = self._docker(name, "import", *options, "-", image, stdin=content)
            assert done.returncode == 0, done.stderr

    def asked(self, of: str) -> list[str]:
        """What was asked of the API so far, "create pods" or "get pods/attach", by programs of that name."""
        answers: list[str] = []
        for line in (self.directory / "audit.log").read_text().splitlines():
            entry = json.loads(line)
            if entry["stage"] == "ResponseComplete" and of in entry.get("userAgent", ""):
                what: dict[str, str] = entry.get("objectRef", {})
                parts = filter(None, (what.get("resource"), what.get("subresource")))
                answers.append(f"{entry['verb']} {'/'.join(parts)}")
        return answers

    def _has_accounts(self) -> bool:
        return "default" in self.kubectl("get", "serviceaccounts", check=False)

    def clear(self) -> None:
        """Delete all Pods, and wait until nodes are as in the beginning."""
        for name in self.nodes:
            self.kubectl("uncordon", name)
        self.kubectl(
            "delete", "pods", "--all", "--all-namespaces", "--grace-period=1", "--wait=false"
        )
        for _ in until("the end of all Pods", 150):
            if not self.get("pods", "--all-namespaces")["items"]:
                return

    def logs(self) -> str:
        """The ends of all its logs."""
        logs = sorted((self.directory / "log").iterdir())
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)

    # --- its parts ---

    def start_etcd(self) -> None:
        self._run(
            HUB, "etcd", ["etcd", "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync"]
        )

    def start_api(self) -> None:
        """Returns when it answers."""
        keys, address = self.directory / "pki", self.address(HUB)
        self._run(
            HUB,
            "kube-apiserver",
            [
                "--etcd-servers=http://127.0.0.1:2379",
                f"--bind-address={address}",
                f"--advertise-address={address}",
                "--secure-port=6443",
                f"--cert-dir={keys}",
                f"--token-auth-file={keys}/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://lab",
                f"--service-account-signing-key-file={keys}/sa.key",
                f"--service-account-key-file={keys}/sa.key",
                "--kubelet-preferred-address-types=InternalIP",
                f"--audit-policy-file={self.directory}/audit.json",
                f"--audit-log-path={self.directory}/audit.log",
                # Old versions are soon forgotten: watches expire.
                "--etcd-compaction-interval=0",
            ],
        )
        for _ in until("an answer of the API server", 60):
            if self.kubectl("get", "--raw", "/readyz", check=False) == "ok":
                return

    def start_controllers(self) -> None:
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        key = f"--service-account-private-key-file={self.directory}/pki/sa.key"
        grace = ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"]
        own = ["--use-service-account-credentials=false"]
        # By which Pods with a token of their account know the API server.
        root = f"--root-ca-file={self.directory}/pki/apiserver.crt"
        self._run(HUB, "kube-controller-manager", [*common, key, root, *grace, *own])
        self._run(HUB, "kube-scheduler", common)

    def stop(self, part: str, number: int = signal.SIGKILL) -> None:
        """One of the hub's parts, by its command; or `kubelet.NODE`, `dockerd.NODE`."""
        self.kill(self._running.pop(part), number)

    def pause(self, part: str) -> None:
        """It hangs, until `resume`."""
        os.killpg(self._running[part].pid, signal.SIGSTOP)

    def resume(self, part: str) -> None:
        os.killpg(self._running[part].pid, signal.SIGCONT)

    def start_kubelet(self, name: str, *, disk_mib: int = 0) -> None:
        """`disk_mib`: of a disk for what Pods write, which is short when less than half of it is left; 0 =
        the machine's, which never is."""
        own = self.directory / name
        (own / "logs").mkdir(parents=True, exist_ok=True)
        # Kubelets remove the logs of Pods that they do not know: each has a directory of its own.
        logs = "mkdir -p /var/log/pods /var/log/containers && mount --bind {0} /var/log/pods"
        script = f'{logs.format(own / "logs")} && exec "$@"'
        evicting: list[str] = []
        if disk_mib:
            root = own / "kubelet"
            disk = f"mkdir -p {root} && mount -t tmpfs -o size={disk_mib}m tmpfs {root}"
            script = f"{disk} && {script}"
            # It is not short any more as soon as somebody was evicted.
            evicting = [
                "--eviction-hard=nodefs.available<50%",
                "--eviction-pressure-transition-period=2s",
            ]
        self._run(
            name,
            "kubelet",
            [
                f"--kubeconfig={self.kubeconfig}",
                f"--config={self.directory}/kubelet.{name}.json",
                f"--hostname-override={name}",
                f"--node-ip={self.address(name)}",
                f"--docker-endpoint={_SOCKET}",
                f"--docker={_SOCKET}",
                # Nodes share /run: by the usual place one kubelet would speak to the other one's containers.
                "--container-runtime-endpoint=unix:///tmp/dockershim.sock",
                f"--pod-infra-container-image={IMAGE}",
                f"--root-dir={own}/kubelet",
                f"--cert-dir={own}/pki",
                "--volume-plugin-dir=/tmp/plugins",
                *evicting,
            ],
            wrapped=["sh", "-c", script, "-"],
        )

    def revive(self, name: str) -> None:
        """A node whose power was lost boots."""
        self.start([name])
        self._connect(name)
        self._start_docker(name)
        self.start_kubelet(name)

    # --- inside ---

    def _run(
        self, where: str, command: str, arguments: Sequence[str], wrapped: Sequence[str] = ()
    ) -> None:
        part = command if where == HUB else f"{command}.{where}"
        tool = binaries() / command
        argv = [*wrapped, str(tool) if tool.exists() else command, *arguments]
        if command == "etcd":
            argv = list(arguments)
        if where != HUB:
            argv = self.joining(argv)
        with (self.directory / "log" / part).open("ab") as log:
            self._running[part] = self.popen(where, argv, output=log, env=_environment())

    def _start_docker(self, name: str) -> None:
        own = self.directory / name
        own.mkdir(exist_ok=True)
        # What a real machine's boot finds empty.
        self.on_disk(name, "/tmp/docker.pid").unlink(missing_ok=True)
        shutil.rmtree(self.on_disk(name, "/tmp/docker-exec"), ignore_errors=True)
        self._make_groups(name)
        number = self.nodes.index(name) + 1
        self._run(
            name,
            "dockerd",
            [
                *("--data-root", str(own / "docker"), "--exec-root", "/tmp/docker-exec"),
                *("-H", _SOCKET, "--pidfile", "/tmp/docker.pid"),
                *("--iptables=false", "--ip6tables=false", "--ip-masq=false"),
                *("--add-runtime", f"lab={self.directory}/runc", "--default-runtime", "lab"),
                f"--bip={self._pods(number, 1)}/27",
            ],
        )
        for _ in until(f"an answer of dockerd on {name}"):
            if self._docker(name, "version").returncode == 0:
                return

    def _docker(
        self, name: str, *command: str, stdin: IO[bytes] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.argv(name, [_DOCKER, "-H", _SOCKET, *command]),
            capture_output=True,
            check=False,
            stdin=stdin,
        )

    def _load_image(self, name: str) -> None:
        with subprocess.Popen(
            ["tar", "-C", str(self.directory / "rootfs"), "-c", "."], stdout=subprocess.PIPE
        ) as packing:
            change = 'ENTRYPOINT ["/bin/sleep", "infinity"]'
            done = self._docker(
                name, "import", "--change", change, "-", IMAGE, stdin=packing.stdout
            )
            assert done.returncode == 0, done.stderr

    def _pods(self, node: int, host: int) -> str:
        """Addresses of a node's Pods: 10.214.LAB.(32 NODE) to ... + 31."""
        return f"10.214.{self.network.split('.')[2]}.{32 * node + host}"

    def _connect(self, name: str) -> None:
        """Pods of a node can be reached from all other machines, as with the simplest of networks."""
        number = self.nodes.index(name) + 1
        way = f"{self._pods(number, 0)}/27 via {self.address(name)}"
        subprocess.run(["ip", "route", "replace", *way.split()], check=True)
        for other in (HUB, *self.nodes):
            if other != name:
                self.run(other, ["ip", "route", "replace", *way.split()])
        for other in self.nodes:
            if other != name:
                back = f"{self._pods(self.nodes.index(other) + 1, 0)}/27 via {self.address(other)}"
                self.run(name, ["ip", "route", "replace", *back.split()])

    def _group(self, name: str) -> str:
        return f"{self.mark}-{name}-pods"

    def _make_groups(self, name: str) -> None:
        """Where a kubelet makes those of its Pods, in each tree as the node sees it."""
        script = [
            "for tree in /sys/fs/cgroup/*/; do",
            f'  [ -e "$tree/cgroup.procs" ] && mkdir -p "$tree/{self._group(name)}"',
            "done",
            "for file in cpuset.cpus cpuset.mems; do",
            f"  cat /sys/fs/cgroup/cpuset/$file > /sys/fs/cgroup/cpuset/{self._group(name)}/$file",
            "done",
        ]
        self.run(name, ["sh", "-c", "\n".join(script)])

    def _write_configuration(self) -> None:
        own = self.directory
        subprocess.run(
            ["openssl", "genrsa", "-out", str(own / "pki/sa.key"), "2048"],
            check=True,
            capture_output=True,
        )
        (own / "pki/tokens.csv").write_text(
            f'{ADMIN},admin,admin,"system:masters"\n{SERVICE},trainshed,trainshed\n'
        )
        for path, token in ((self.kubeconfig, ADMIN), (self.service_kubeconfig, SERVICE)):
            path.write_text(json.dumps(self._kubeconfig(token)))
        rules = {"rules": [{"level": "Metadata", "omitStages": ["RequestReceived"]}]}
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", **rules}
        (own / "audit.json").write_text(json.dumps(policy))
        for name in self.nodes:
            (own / f"kubelet.{name}.json").write_text(json.dumps(self._kubelet(name)))
        wrapper = own / "runc"
        script = Path(__file__).with_name("runc_wrapper.py")
        wrapper.write_text(f'#!/bin/sh\nexec {rootfs.INTERPRETER} -ISE {own}/runc.py "$@"\n')
        # Where nodes see it: the tree is not shown to them below /tmp alone.
        shutil.copy(script, own / "runc.py")
        wrapper.chmod(0o755)

    def _kubeconfig(self, token: str) -> Mapping[str, Any]:
        server = {"server": f"https://{self.address(HUB)}:6443", "insecure-skip-tls-verify": True}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "user"}}],
            "current-context": "lab",
        }

    def _kubelet(self, name: str) -> Mapping[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._group(name)}",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
            # What Pods write counts soon.
            "volumeStatsAggPeriod": "5s",
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "4s",
            "nodeLeaseDurationSeconds": LEASE,
            "serializeImagePulls": False,
            "maxPods": 60,
            "registryPullQPS": 0,
            # As newer ones have them by themselves.
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "eventRecordQPS": 50,
            "eventBurst": 100,
            "containerLogMaxSize": "10Mi",
        }


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Of an object of the core API."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "GOMAXPROCS": "2"}


if __name__ == "__main__":
    # A cluster to try things on: until this process is ended.
    with KubernetesLab(Path(sys.argv[1]), shown=tree()) as lab:
        print(f"export KUBECONFIG={lab.kubeconfig}; service address {lab.outside}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
