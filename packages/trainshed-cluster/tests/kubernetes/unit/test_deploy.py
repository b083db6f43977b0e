"""The chart, the images and the code are consistent. tests.kubernetes.test_in_cluster tests that a cluster
accepts the rendered chart."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import chart
from tests.sources import ROOT
from trainshed.serve import settings as service_settings
from trainshed_cluster.kubernetes.settings import parse

DEPLOY = ROOT / "deploy"
DOCUMENTS = chart.render_chart()


def of_kind(kind: str, documents: list[dict[str, Any]] = DOCUMENTS) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


[MAP] = of_kind("ConfigMap")
CONFIG: dict[str, Any] = tomllib.loads(MAP["data"]["config.toml"])
[SET] = of_kind("StatefulSet")
POD: dict[str, Any] = SET["spec"]["template"]["spec"]
[SERVICE] = POD["containers"]
VARIABLES = {variable["name"]: variable.get("value", "") for variable in SERVICE["env"]}


def test_settings_change_restarts_the_service() -> None:
    [other] = of_kind("StatefulSet", chart.render_chart(config='engine = "kubernetes"\n'))
    assert other["spec"]["template"]["metadata"] != SET["spec"]["template"]["metadata"]
    assert other["spec"]["template"]["spec"] == SET["spec"]["template"]["spec"]


def test_helm_chart_for_a_service_outside_the_cluster_contains_only_permissions() -> None:
    documents = chart.render_chart(user="ana@corp.example")
    assert {document["kind"] for document in documents} == {document["kind"] for document in DOCUMENTS} - {
        *("Service", "StatefulSet", "ConfigMap")
    }
    subjects = [document["subjects"] for document in documents if "subjects" in document]
    assert [subject["name"] for [subject] in subjects] == ["ana@corp.example"] * 2


def test_settings_in_the_helm_chart_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(CONFIG["engines"]["kubernetes"])
    assert settings.run_as and not settings.cache, "required by the Pod Security level restricted"
    for name, value in VARIABLES.items():
        if name.startswith("TRAINSHED_"):
            monkeypatch.setenv(name, value.replace("$(NAMESPACE)", "training"))
    (tmp_path / "config.toml").write_text(MAP["data"]["config.toml"])
    loaded = service_settings.load(tmp_path / "config.toml", {})
    assert loaded.engine == "kubernetes" and loaded.tls
    assert "trainshed-service" in loaded.allowed_hosts
    [further] = of_kind("StatefulSet", chart.render_chart(allowedHosts="*.example.org"))
    assert ".svc,*.example.org'" in str(further)


def test_chart_ports_match_the_ports_of_the_service() -> None:
    ports = {
        port["name"]: port["port"] for document in of_kind("Service") for port in document["spec"]["ports"]
    }
    assert ports == {document["name"]: document["containerPort"] for document in SERVICE["ports"]}
    assert ports == {
        "api": int(VARIABLES["TRAINSHED_PORT"]),
        "grpc": int(VARIABLES["TRAINSHED_GRPC_TLS_PORT"]),
        "agents": CONFIG["engines"]["kubernetes"]["port"],
    }
    for document in of_kind("Service"):
        assert document["spec"]["selector"].items() <= SET["spec"]["template"]["metadata"]["labels"].items()
    agents = next(
        document for document in of_kind("Service") if document["metadata"]["name"] == "trainshed-agents"
    )
    assert agents["metadata"]["name"] == CONFIG["engines"]["kubernetes"]["address"]
    assert agents["spec"]["publishNotReadyAddresses"], "agents must reach the service before it is ready"


def test_persistent_directories_of_the_service_pod_are_in_its_volume() -> None:
    [claim] = SET["spec"]["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in SERVICE["volumeMounts"]}
    place = mounts[claim["metadata"]["name"]]
    for name in ("TRAINSHED_DATA", "TRAINSHED_CACHE", "HOME"):
        assert Path(VARIABLES[name]).is_relative_to(place), name
    assert SERVICE["args"] == ["up", "--config", f"{mounts['config']}/config.toml"]
    assert SET["spec"]["replicas"] == 1, "the data directory belongs to one service at a time"


def test_service_pod_meets_the_restricted_pod_security_standard() -> None:
    """kubernetes.io/docs: Pod Security Standards, Restricted."""
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not SERVICE["securityContext"]["allowPrivilegeEscalation"]
    assert SERVICE["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not POD.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert all(volume.keys() & {"configMap", "emptyDir"} for volume in POD["volumes"])


def test_roles_of_the_helm_chart_grant_access_only_to_nodes_and_pods() -> None:
    allowed = {"nodes", "pods", "pods/attach"}
    for kind in ("ClusterRole", "Role"):
        for role in of_kind(kind):
            for rule in role["rules"]:
                assert set(rule["resources"]) <= allowed
                assert "*" not in rule["verbs"]
                writes = {"create", "delete", "update", "patch"} & set(rule["verbs"])
                assert kind == "Role" or not writes, "no cluster-wide write access"


def test_kueue_role_is_limited_to_workloads_of_the_namespace() -> None:
    documents = chart.render_chart(kueue=True)
    *_, role = of_kind("Role", documents)
    [rule] = role["rules"]
    assert rule["resources"] == ["workloads"]
    assert set(rule["verbs"]) == {"list", "watch", "delete"}
    *_, binding = of_kind("RoleBinding", documents)
    [account] = of_kind("ServiceAccount")
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]


_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
"""Python version of each Debian release."""


def test_image_versions_match_the_chart_and_the_project() -> None:
    [debian] = re.findall(
        r"^ARG BASE=.*debian:(\w+)-slim$", (DEPLOY / "image/Containerfile").read_text(), re.MULTILINE
    )
    base = (DEPLOY / "pods/Containerfile").read_text()
    assert f"ARG PYTHON={_PYTHONS[debian]}\n" in base
    assert CONFIG["engines"]["kubernetes"]["image"].endswith(f":{_PYTHONS[debian]}")
    version = tomllib.loads((ROOT / "packages/trainshed/pyproject.toml").read_text())["project"]["version"]
    assert SERVICE["image"].endswith(f":{version}")
    described = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert described["version"] == described["appVersion"] == version


@pytest.mark.parametrize("name", ["lightkube", "grpcio"])
def test_service_image_contains_the_packages_of_the_engine(name: str) -> None:
    assert re.search(rf"^{name}==", (ROOT / "locks/kubernetes.txt").read_text(), re.MULTILINE)


def test_service_image_uses_the_locked_packages() -> None:
    def read_pins(path: str) -> set[str]:
        return set(re.findall(r"^[a-z0-9-]+==\S+", (ROOT / path).read_text(), re.MULTILINE))

    assert read_pins("locks/run.txt") <= read_pins("locks/kubernetes.txt") <= read_pins("locks/dev.txt")


def test_secret_variables_come_from_a_kubernetes_secret() -> None:
    [plain] = of_kind("StatefulSet", DOCUMENTS)
    [secret] = of_kind("StatefulSet", chart.render_chart(secret="trainshed-variables"))
    container = secret["spec"]["template"]["spec"]["containers"][0]
    assert container.pop("envFrom") == [{"secretRef": {"name": "trainshed-variables"}}]
    assert secret == plain
