"""Runs the service as a Pod of the lab, installed by the operators' chart (deploy/chart)."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.running import CACHE, ROOT, Service
from tests.kubernetes import chart
from tests.kubernetes.lab import IMAGE, KubernetesLab, manifest
from tests.slurm.nodes import HUB, tree, until
from trainshed.runtimes.interpreters import Interpreters

NAMESPACE = "training"
POD = "trainshed-0"
_HOME = "node1"
"""The node of the service. The service uses the node's network, so that agents reconnect without DNS. The
volume is on this node."""
_VOLUME = "/tmp/service"
_USER = 1000
_SETTINGS = """
overcommit = 8.0
"""
# The namespace in docs/kubernetes.md.
_NAMESPACE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
}


def install(lab: KubernetesLab) -> None:
    """Install the chart, with changes for a lab without images, DNS and volumes."""
    place = lab.on_disk(_HOME, _VOLUME)
    (place / "cache").mkdir(parents=True)
    CACHE.parent.chmod(0o755)  # Its creator may have restricted access to it.
    # The lab cannot access a package index. The Pod has the environments at their original paths.
    shutil.copytree(CACHE / "environments", place / "cache" / "environments", symlinks=True)
    subprocess.run(["chown", "-hR", f"{_USER}:{_USER}", str(place)], check=True)
    config = chart.VALUES["config"]
    for name, text in (("image", IMAGE), ("address", lab.address(_HOME))):
        config = re.sub(f'(?m)^{name} = ".*"$', f'{name} = "{text}"', config)
    documents = [_adapt(lab, document) for document in chart.render_chart(config=config + _SETTINGS)]
    lab.apply(_NAMESPACE, _volume(), *documents, namespace=NAMESPACE)


def remove(lab: KubernetesLab) -> None:
    """Delete the release with its jobs' Pods and its data."""
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=false", "--ignore-not-found")
    lab.kubectl(*("delete", "pods", "-n", NAMESPACE, "--all", "--grace-period=1", "--wait=false"))
    for _ in until("the end of the namespace", 150):
        if NAMESPACE not in lab.kubectl("get", "namespaces"):
            break
    lab.kubectl("delete", "persistentvolume", "service")
    shutil.rmtree(lab.on_disk(_HOME, _VOLUME))


def await_ready(lab: KubernetesLab, *, other_than: str = "") -> dict[str, Any]:
    """Wait until the service's Pod is ready, and return it. `other_than`: uid of its predecessor."""
    for _ in until("the service in the cluster", 120):
        [pod] = pods(lab) or [{}]
        conditions = pod.get("status", {}).get("conditions", ())
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
        )
        if ready and pod["metadata"]["uid"] != other_than:
            return pod
    raise AssertionError


def pods(lab: KubernetesLab) -> list[dict[str, Any]]:
    return lab.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=trainshed-service")["items"]


def external_service(lab: KubernetesLab) -> Service:
    """Return the service at the address for other machines. Its authority: `authority`."""
    data = lab.on_disk(_HOME, _VOLUME) / "data"
    token = (data / "owner.token").read_text().strip()
    process = subprocess.Popen(["true"])
    return Service(data, process, f"https://{lab.address(_HOME)}:8080", token, 0)


def authority(lab: KubernetesLab) -> Path:
    return lab.on_disk(_HOME, _VOLUME) / "data" / "tls" / "ca.pem"


def _adapt(lab: KubernetesLab, manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] == "StatefulSet":
        _adapt_pod(lab, manifest["spec"]["template"]["spec"])
        manifest["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = ""
    return manifest


def _adapt_pod(lab: KubernetesLab, spec: dict[str, Any]) -> None:
    """Replace the image with this checkout and its Python."""
    spec["hostNetwork"] = True
    spec["nodeSelector"] = {"kubernetes.io/hostname": _HOME}
    [service] = spec["containers"]
    assert service["args"][0] == "up", "the image's entry point is `trainshed`"
    service |= {"image": IMAGE, "imagePullPolicy": "Never"}
    service["command"] = [str(ROOT / ".venv/bin/python"), "-m", "trainshed"]
    service["resources"]["requests"] = {"cpu": "100m", "memory": "256Mi"}
    for variable in service["env"]:
        if variable["name"] == "TRAINSHED_ALLOWED_HOSTS":
            variable["value"] += f",{lab.address(_HOME)}"
        # Environments are at the paths where they were built.
        if variable["name"] == "TRAINSHED_CACHE":
            variable["value"] = str(CACHE)
    # The lab has no proxy for addresses of Services.
    service["env"] += [
        {"name": "KUBERNETES_SERVICE_HOST", "value": lab.address(HUB)},
        {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
        {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
    ]
    pythons = _pythons()
    path = ":".join([*(f"{prefix}/bin" for prefix in pythons), "/usr/bin:/bin"])
    service["env"].append({"name": "PATH", "value": path})
    for number, path in enumerate(dict.fromkeys([*map(str, tree()), *pythons])):
        spec["volumes"].append({"name": f"tree-{number}", "hostPath": {"path": path}})
        mount = {"name": f"tree-{number}", "mountPath": path, "readOnly": True}
        service["volumeMounts"].append(mount)
    cache = {"name": "trainshed", "mountPath": str(CACHE), "subPath": "cache"}
    service["volumeMounts"].append(cache)


def _pythons() -> list[str]:
    """Return the prefixes of this machine's Pythons for test environments, without the system's."""
    return sorted({python.prefix for python in Interpreters().search()} - {"/usr", "/usr/local"})


def _volume() -> dict[str, Any]:
    return manifest(
        "PersistentVolume",
        "service",
        accessModes=["ReadWriteOnce"],
        capacity={"storage": "100Gi"},
        hostPath={"path": _VOLUME},
    )


def describe_service(lab: KubernetesLab) -> str:
    """Return the log of the service's Pod, and the cluster's description of it."""
    commands = (["logs", POD], ["get", "events", "--sort-by=.lastTimestamp"])
    return "\n".join(lab.kubectl(*words, "-n", NAMESPACE, check=False) for words in commands)
