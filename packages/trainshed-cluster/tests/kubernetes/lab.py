"""A real Kubernetes cluster on one machine. etcd, the API server, the scheduler and the controller manager
run on the hub, one of the lab's machines. Each node runs a dockerd and a kubelet.

It requires root, Debian's packages etcd-server, docker.io, kubernetes-client and iproute2, and the binaries
of `build_binaries.sh`. Nodes are machines of `tests.slurm.nodes`: each has its own processes, network and
control groups, and can lose its power or its connection.
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
"""Tokens of an administrator, and of a user without default rights."""
LEASE = 8
"""Minimum seconds until a node that does not renew its lease counts as unreachable."""
_BINARIES = ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet")
_COMMANDS = ("etcd", "dockerd", "runc", "ip", "nsenter", "unshare", "kubectl", "ldd")
_DOCKER = "/usr/bin/docker"
_SOCKET = "unix:///tmp/docker.sock"
"""A short path, because sockets' paths are limited. Each node has its own /tmp."""
_CGROUPS = Path("/sys/fs/cgroup")


def binaries() -> Path:
    """Return the directory of the binaries, which may not be built yet."""
    if path := os.environ.get("TRAINSHED_TEST_KUBERNETES"):
        return Path(path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return cache / "trainshed-tests" / f"kubernetes-{VERSION}-2"


def unavailable_reason() -> str | None:
    """Return why this machine cannot run the lab; None = it can."""
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
    """A cluster with the nodes node1 and node2. Use it as a context manager, which removes all leftovers."""

    def __init__(self, directory: Path, shown: Sequence[Path] = ()) -> None:
        super().__init__(directory, ["node1", "node2"], shown)
        self.kubeconfig = directory / "admin.json"
        #: The kubeconfig of the user with only the rights that a test grants.
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

    # --- access ---

    def kubectl(self, *arguments: str, check: bool = True, stdin: str | None = None) -> str:
        """Run kubectl and return its output."""
        done = execute(
            *("kubectl", "--kubeconfig", str(self.kubeconfig), *arguments), input=stdin, timeout=60
        )
        if check and done.returncode:
            raise subprocess.CalledProcessError(done.returncode, arguments, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> None:
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", "-n", namespace, "-f", "-", stdin=listed)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return the objects that `kubectl get` finds."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def ready(self) -> set[str]:
        """Return the names of ready nodes."""
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
        """Load an image with these files and this configuration (`Entrypoint`, `Env`, …) on all nodes."""
        words = {"Entrypoint": "ENTRYPOINT", "Cmd": "CMD"}
        changes = [f"{words[key]} {json.dumps(config[key])}" for key in words if key in config]
        changes += [f"ENV {variable}" for variable in config.get("Env", ())]
        changes += [f"WORKDIR {config['WorkingDir']}"] if "WorkingDir" in config else []
        options = [word for change in changes for word in ("--change", change)]
        for name in self.nodes:
            with tar.open("rb") as content:
                done = self._docker(name, "import", *options, "-", image, stdin=content)
            assert done.returncode == 0, done.stderr

    def api_calls(self, of: str) -> list[str]:
        """Return the API calls of the programs of that name so far, such as "create pods" or "get
        pods/attach"."""
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
        """Delete all Pods, and wait until the nodes have their initial state."""
        for name in self.nodes:
            self.kubectl("uncordon", name)
        self.kubectl("delete", "pods", "--all", "--all-namespaces", "--grace-period=1", "--wait=false")
        for _ in until("the end of all Pods", 150):
            if not self.get("pods", "--all-namespaces")["items"]:
                return

    def logs(self) -> str:
        """Return the ends of all logs."""
        logs = sorted((self.directory / "log").iterdir())
        return "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)

    # --- components ---

    def start_etcd(self) -> None:
        self._run(HUB, "etcd", ["etcd", "--data-dir", str(self.directory / "etcd"), "--unsafe-no-fsync"])

    def start_api(self) -> None:
        """Start the API server, and wait until it responds."""
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
                # Old versions are removed soon, so that watches expire.
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
        # Certificate with which Pods verify the API server if they have an account's token.
        root = f"--root-ca-file={self.directory}/pki/apiserver.crt"
        self._run(HUB, "kube-controller-manager", [*common, key, root, *grace, *own])
        self._run(HUB, "kube-scheduler", common)

    def stop(self, part: str, number: int = signal.SIGKILL) -> None:
        """Stop a component of the control plane (on the machine `hub`) by its command, or `kubelet.NODE` or
        `dockerd.NODE`."""
        self.kill(self._running.pop(part), number)

    def pause(self, part: str) -> None:
        """Suspend a component until `resume`."""
        os.killpg(self._running[part].pid, signal.SIGSTOP)

    def resume(self, part: str) -> None:
        os.killpg(self._running[part].pid, signal.SIGCONT)

    def start_kubelet(self, name: str, *, disk_mib: int = 0) -> None:
        """Start a node's kubelet. `disk_mib`: size of a disk for the data of Pods, which counts as full below
        half of it; 0 = the machine's disk, which never does."""
        own = self.directory / name
        (own / "logs").mkdir(parents=True, exist_ok=True)
        # Kubelets remove the logs of unknown Pods, so that each has its own directory.
        logs = "mkdir -p /var/log/pods /var/log/containers && mount --bind {0} /var/log/pods"
        script = f'{logs.format(own / "logs")} && exec "$@"'
        evicting: list[str] = []
        if disk_mib:
            root = own / "kubelet"
            disk = f"mkdir -p {root} && mount -t tmpfs -o size={disk_mib}m tmpfs {root}"
            script = f"{disk} && {script}"
            # The shortage ends as soon as a Pod was evicted.
            evicting = ["--eviction-hard=nodefs.available<50%", "--eviction-pressure-transition-period=2s"]
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
                # Nodes share /run. At the usual path, a kubelet would reach the containers of another one.
                "--container-runtime-endpoint=unix:///tmp/dockershim.sock",
                f"--pod-infra-container-image={IMAGE}",
                f"--root-dir={own}/kubelet",
                f"--cert-dir={own}/pki",
                "--volume-plugin-dir=/tmp/plugins",
                *evicting,
            ],
            wrapped=["sh", "-c", script, "-"],
        )

    def boot(self, name: str) -> None:
        """Boot a node after a power loss."""
        self.start([name])
        self._connect(name)
        self._start_docker(name)
        self.start_kubelet(name)

    # --- internals ---

    def _run(self, where: str, command: str, arguments: Sequence[str], wrapped: Sequence[str] = ()) -> None:
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
        # A real machine's boot empties it.
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
            self.argv(name, [_DOCKER, "-H", _SOCKET, *command]), capture_output=True, check=False, stdin=stdin
        )

    def _load_image(self, name: str) -> None:
        with subprocess.Popen(
            ["tar", "-C", str(self.directory / "rootfs"), "-c", "."], stdout=subprocess.PIPE
        ) as packing:
            change = 'ENTRYPOINT ["/bin/sleep", "infinity"]'
            done = self._docker(name, "import", "--change", change, "-", IMAGE, stdin=packing.stdout)
            assert done.returncode == 0, done.stderr

    def _pods(self, node: int, host: int) -> str:
        """Return the addresses of a node's Pods: 10.214.LAB.(32 NODE) to ... + 31."""
        return f"10.214.{self.network.split('.')[2]}.{32 * node + host}"

    def _connect(self, name: str) -> None:
        """Route all machines to a node's Pods, as the simplest networks do."""
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
        """Create the control groups of a kubelet's Pods, in each tree as the node sees it."""
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
            ["openssl", "genrsa", "-out", str(own / "pki/sa.key"), "2048"], check=True, capture_output=True
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
        # Nodes see it only here: below /tmp, the tree is hidden from them.
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
            # The disk usage of Pods is updated soon.
            "volumeStatsAggPeriod": "5s",
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "4s",
            "nodeLeaseDurationSeconds": LEASE,
            "serializeImagePulls": False,
            "maxPods": 60,
            "registryPullQPS": 0,
            # The defaults of newer versions.
            "kubeAPIQPS": 50,
            "kubeAPIBurst": 100,
            "eventRecordQPS": 50,
            "eventBurst": 100,
            "containerLogMaxSize": "10Mi",
        }


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a manifest of the core API."""
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _environment() -> dict[str, str]:
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "GOMAXPROCS": "2"}


if __name__ == "__main__":
    # A cluster for experiments, until this process ends.
    with KubernetesLab(Path(sys.argv[1]), shown=tree()) as lab:
        print(f"export KUBECONFIG={lab.kubeconfig}; service address {lab.outside}", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
