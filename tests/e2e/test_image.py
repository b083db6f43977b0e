"""The files of a release in their environments: in the image of the service (deploy/image), and on a server
set up as in docs/server.md. Uses podman and a Debian built by `./dev test-image`.
"""

import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools import release

from tests.commands import execute
from tests.docs.blocks import blocks
from tests.e2e.job_history import PRIMARY
from tests.e2e.job_history import until as until_line
from tests.e2e.running import ROOT, Service, container_job, submit
from tests.slurm.nodes import until

_BASE = os.environ.get("TRAINSHED_TEST_BASE", "")
pytestmark = pytest.mark.skipif(not _BASE, reason="./dev test-image makes a Debian, and runs these")
_IMAGE = "localhost/trainshed:test"
_RUNC = ROOT / "packages/trainshed-cluster/tests/kubernetes/runc_wrapper.py"
_ROOTS = "/etc/ssl/certs/ca-certificates.crt"
_OPTIONS = {
    level: shlex.split(options)
    for level, options in re.findall(
        r"^\| `([a-z-]+)` \| (?:nothing|`(--.*?)`) \|", (ROOT / "docs/server.md").read_text(), re.MULTILINE
    )
}
"""Container options of docs/server.md, by the isolation level that they allow."""
_IMPORTS = """
import importlib, pkgutil, trainshed.studies as studies
for module in pkgutil.walk_packages(studies.__path__, "trainshed.studies."):
    importlib.import_module(module.name)
"""
_COUNTS = """
import time
for number in range(300):
    print(number, flush=True)
    time.sleep(0.1)
"""
_DOCTOR_SCRIPT = """
runuser -u trainshed -- env HOME=/var/lib/trainshed trainshed doctor
bearer="Authorization: Bearer $(cat /etc/trainshed/prometheus.token)"
curl -sSf -H "$bearer" http://localhost:8080/metrics | grep -c "^trainshed_info"
echo MODES
cd /var/lib/trainshed/.trainshed
stat -c %A . .. trainshed.db owner.token tls/server.key /etc/trainshed/prometheus.token
stat -c %A /var/backups/trainshed /var/backups/trainshed/*
"""
_RUNS = f"""
export TRAINSHED_DATA=/var/lib/trainshed/.trainshed
cat > counts.py <<'END'{_COUNTS}END
trainshed run counts.py --name counts --image scikit-learn=1.6 --detach
grep -q '^workerpool0-0 *5' < <(trainshed jobs logs -f counts)
"""
_ENDED = """
curl -sS --retry 60 --retry-delay 1 --retry-connrefused http://localhost:8080/healthz
trainshed jobs wait counts
trainshed jobs timeline counts > timeline
grep -q service_away timeline
grep -c replica_started timeline | grep -x 1
trainshed jobs logs counts | grep -o '[0-9]*$' | tail -1
"""
_HOSTILE = """
import os
for path in ("owner.token", "trainshed.db", "secrets.key", "tls/server.key"):
    try:
        print("read", len(open("/data/.trainshed/" + path, "rb").read()))
    except OSError:
        print("held")
try:
    open("/usr/planted", "w")
    print("written")
except OSError:
    print("held")
"""


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Runs podman with a separate store, which caches the layers of images, and with runc if machines like
    CI's require it.
    """
    place = tmp_path_factory.mktemp("podman")
    runtime = place / "runc"
    runtime.write_text(f'#!/bin/sh\nexec {sys.executable} {_RUNC} "$@"\n')
    runtime.chmod(0o755)
    own = [f"--{name}={ROOT}/build/podman/{name}" for name in ("root", "runroot", "tmpdir")]

    def run(*words: str) -> str:
        command = ["podman", "--log-level=fatal", f"--runtime={runtime}", *own, *words]
        environ = os.environ | {"BUILDAH_ISOLATION": "chroot"}
        done = execute(*command, env=environ, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    if "localhost/debian" not in run("images"):
        run("import", _BASE, "localhost/debian:test")
    yield run
    run("rm", "--all", "--force", "--volumes")
    run("volume", "rm", "--all", "--force")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("release") / "dist"
    release.build(place)
    return place


_OWN = [f"--volume={path}:{path}:ro" for path in (_ROOTS, "/etc/pip.conf") if Path(path).exists()]
"""The settings for the package index on this machine."""


@pytest.fixture(scope="module")
def image(podman: Callable[..., str], dist: Path) -> str:
    podman(
        *("build", "--quiet", "--format=docker", "--build-arg=BASE=localhost/debian:test", *_OWN),
        *("--tag", _IMAGE, f"--file={ROOT}/deploy/image/Containerfile", str(dist)),
    )
    return _IMAGE


def test_image_is_small_and_contains_only_the_release(
    image: str, podman: Callable[..., str], tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    podman("push", "--quiet", "--compression-format=gzip", image, f"oci-archive:{archive}")
    assert archive.stat().st_size < 150e6
    [config] = json.loads(podman("inspect", image))
    assert config["Config"]["User"] == "1000:1000"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    texts = json.dumps(config["Config"]) + podman("history", "--no-trunc", "--format={{.CreatedBy}}", image)
    assert not re.search(r"password|token=|PIP_INDEX_URL|/root/", texts, re.IGNORECASE)
    with tarfile.open(archive) as outer:
        layers = [name for name in outer.getnames() if outer.getmember(name).size > 10**5]
        names: set[str] = set()
        for layer in layers:
            with tarfile.open(fileobj=outer.extractfile(layer), mode="r:gz") as inner:
                # Mounts of this machine's files leave empty files.
                names.update(member.name for member in inner if member.size or member.isdir())
    assert "opt/trainshed/bin/trainshed" in names
    # Their tests were not copied.
    podman("run", "--rm", "--entrypoint=python3", image, "-c", _IMPORTS)
    private = r"(tmp|data|root)/.|.*(\.git|\.key|/pip\.conf)$"
    assert not [name for name in names if re.match(private, name)]


@pytest.mark.parametrize("level", _OPTIONS)
def test_doctor_in_a_container_reports_the_isolation_level_in_the_documentation(
    level: str, image: str, podman: Callable[..., str]
) -> None:
    text = podman("run", "--rm", "--read-only", *_OPTIONS[level], image, "doctor", "--format=json")
    assert level in text


def test_job_survives_a_container_restart_and_cannot_read_secrets(
    image: str, podman: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container has a read-only root file system. Stopping the container stops its programs."""
    podman(
        *("run", "--detach", "--name=served", "--read-only", "--tmpfs=/tmp", *_OPTIONS["own-user"]),
        *("--volume=trainshed:/data", "--publish=127.0.0.1::8080", *_OWN),
        f"--env=SSL_CERT_FILE={_ROOTS}",
        image,
    )
    volume = Path(podman("volume", "inspect", "trainshed", "--format={{.Mountpoint}}").strip())
    data = volume / ".trainshed"
    assert not volume.stat().st_mode & 0o077
    port = podman("port", "served", "8080").strip().rpartition(":")[2]
    for _ in until("the service in a container", 60):
        if (data / "service.json").exists():
            break
    monkeypatch.setenv("SSL_CERT_FILE", str(data / "tls/ca.pem"))
    token = (data / "owner.token").read_text().strip()
    service = Service(data, subprocess.Popen(["true"]), f"https://localhost:{port}", token, 0)
    podman("healthcheck", "run", "served")
    hostile = submit(service, container_job(_HOSTILE))
    assert service.finish(hostile, 300)["state"] == "SUCCEEDED", service.lines(hostile, "service")
    assert service.lines(hostile, PRIMARY) == ["held"] * 5
    counting = submit(service, container_job(_COUNTS))
    until_line(service.follow(counting, PRIMARY), "5")
    podman("restart", "--time=10", "served")
    for _ in until("the next container", 60):
        try:
            if service.call("GET", "/healthz"):
                break
        except (OSError, http.client.HTTPException):
            continue
    assert service.finish(counting, 120)["state"] == "SUCCEEDED"
    assert service.lines(counting, PRIMARY)[-300:] == [str(number) for number in range(300)]


@pytest.fixture(scope="module")
def server(podman: Callable[..., str], dist: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a container with systemd on a plain Debian."""
    place = tmp_path_factory.mktemp("server")
    (place / "Containerfile").write_text(
        "FROM localhost/debian:test\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends systemd\n"
        "COPY lab.conf /etc/systemd/system.conf.d/\n"
    )
    # On a machine of any size.
    (place / "lab.conf").write_text(
        f"[Manager]\nDefaultEnvironment=SSL_CERT_FILE={_ROOTS} "
        "TRAINSHED_NODE_CPUS=8 TRAINSHED_NODE_MEMORY=32\n"
    )
    podman("build", "--quiet", "--tag=localhost/server:test", *_OWN, str(place))
    # Otherwise systemd rejects cgroup v1.
    legacy = "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 systemd.legacy_systemd_cgroup_controller=1"
    podman(
        *("run", "--detach", "--name=server", "--systemd=always", f"--volume={dist}:/root/dist:ro"),
        *(*_OPTIONS["user"], f"--env=SYSTEMD_PROC_CMDLINE={legacy}", "--workdir=/root", *_OWN),
        *("localhost/server:test", "/usr/lib/systemd/systemd"),
    )
    return "server"


def test_commands_of_the_server_guide_succeed_on_a_bare_server(
    server: str, podman: Callable[..., str]
) -> None:
    """Run all blocks of the page in order. A running job survives the upgrade."""
    shown = [block for block in blocks(ROOT / "docs/server.md") if block.language == "sh"]
    *until_upgrade, upgrade = shown
    script = "\n".join(f"echo '== {block.key}'\n{block.text}" for block in until_upgrade)
    text = podman("exec", server, "bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{script}\n{_DOCTOR_SCRIPT}")
    assert "is a token of ana@corp.example" in text
    assert re.search(r"Restored .* from a backup of /var/lib/trainshed/.trainshed", text), text
    assert "isolation         user" in text, text
    assert {*text.partition("MODES\n")[2].split()} == {"drwx------", "-rw-------"}
    text = podman("exec", server, "bash", "-euo", "pipefail", "-c", f"{_RUNS}\n{upgrade.text}\n{_ENDED}")
    assert text.splitlines()[-1] == "299"
