"""The Pod of a replica, compared with files under tests.golden.kubernetes. UPDATE_GOLDEN=1 writes them."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import manifests, python_copy
from trainshed_cluster.kubernetes.build import pod_command
from trainshed_cluster.kubernetes.objects import Pod, cpu_quantity, parse_quantity
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.cluster import AllocationName, NodeNeed, Owner

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
ALLOCATION = AllocationName("abc", JobUid(7), 2, 3)
NEED = NodeNeed(
    "node-a",
    1,
    4.0,
    16 << 30,
    machine=MachineWanted("n1-standard-4"),
    replica="workerpool0-1",
    hostname="cmle-training-workerpool0-0123abcd-1",
)
PLAIN = {"image": "registry.example/trainshed-base:1"}
GPUS = {
    **PLAIN,
    "namespaces": {"*": "training"},
    "run_as": 0,
    "cache": "/var/cache/trainshed",
    "image_pull_secrets": ["registry"],
    "service_account": "jobs",
    "scheduler": "volcano",
    "overcommit": 2.0,
    "tolerations": [{"key": "dedicated", "operator": "Equal", "value": "training"}],
    "accelerators": {"NVIDIA_TESLA_T4": {"node_selector": {"nvidia.com/gpu.product": "Tesla-T4"}}},
    "machines": [
        {
            "accelerators": ["NVIDIA_TESLA_T4"],
            "node_selector": {"pool": "gpu"},
            "runtime_class": "nvidia",
            "priority_class": "batch",
        }
    ],
}


def pod_of(settings: KubernetesSettings, need: NodeNeed) -> dict[str, Any]:
    routes = Routes(settings)
    return manifests.pod(
        settings,
        routes.of(need.machine),
        routes.accelerator(kind) if (kind := need.machine.accelerator) else None,
        ALLOCATION,
        need,
        command=pod_command(),
        cache="/var/lib/cache",
    )


@pytest.mark.parametrize(
    ("name", "table", "need"),
    [
        ("plain", PLAIN, NEED),
        (
            "gpus",
            GPUS,
            NodeNeed(
                "node-b",
                1,
                8.0,
                30 << 30,
                2,
                MachineWanted("n1-standard-8", "NVIDIA_TESLA_T4"),
                Owner(account="training"),
                replica="workerpool0-0",
                hostname="cmle-training-workerpool0-0123abcd-0",
            ),
        ),
        ("gang", PLAIN, msgspec.structs.replace(NEED, gang_size=2)),
    ],
)
def test_pod_manifest_matches_the_golden_file(name: str, table: dict[str, Any], need: NodeNeed) -> None:
    pod = pod_of(parse(table), need)
    path = GOLDEN / f"pod_{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(pod, indent=2) + "\n")
    assert pod == json.loads(path.read_text())


def test_pod_is_identified_by_its_allocation_annotation() -> None:
    pod = msgspec.convert(pod_of(parse(PLAIN), NEED), Pod)
    assert manifests.allocation_of(pod, "abc") == ALLOCATION
    assert manifests.allocation_of(pod, "other") is None
    metadata = msgspec.structs.replace(pod.metadata, annotations={manifests.ALLOCATION: "mine"})
    assert manifests.allocation_of(msgspec.structs.replace(pod, metadata=metadata), "abc") is None


def test_pod_names_differ_by_attempt_and_allocation() -> None:
    names = {
        manifests.pod_name(NEED, AllocationName("abc", JobUid(7), attempt, part))
        for attempt in (1, 2)
        for part in (0, 1)
    }
    assert len(names) == 4
    assert manifests.pod_name(NEED, ALLOCATION) == "cmle-training-workerpool0-0123abcd-1-2-3"


def test_replacement_pod_of_an_allocation_has_a_different_name() -> None:
    """An ended Pod may keep its name for a minute."""
    settings = parse(PLAIN)
    route = Routes(settings).of(NEED.machine)
    for attempt_number in (0, 1, 12):
        made_again = manifests.pod(
            settings, route, None, ALLOCATION, NEED, command=("x",), cache="/c", again=attempt_number
        )
        assert made_again["metadata"]["name"] == manifests.pod_name(NEED, ALLOCATION, attempt_number)
        assert manifests.predecessor_count(msgspec.convert(made_again, Pod)) == attempt_number
    assert manifests.pod_name(NEED, ALLOCATION, 1) == "cmle-training-workerpool0-0123abcd-1-2-3-1"


def test_hosts_file_of_a_pod_is_copied_when_the_agent_cannot_write_the_file() -> None:
    """Only non-root Pods with peers get the additional container, because it delays their start."""
    gang = msgspec.structs.replace(NEED, gang_size=2)
    assert "initContainers" not in pod_of(parse(PLAIN), NEED)["spec"]
    assert "initContainers" not in pod_of(parse({**PLAIN, "run_as": 0}), gang)["spec"]
    assert len(pod_of(parse(PLAIN), gang)["spec"]["initContainers"]) == 1


def test_command_arguments_are_escaped_against_variable_expansion() -> None:
    """Kubernetes' rule: $(NAME) is a variable, $$ is $, any other $ is literal."""

    def expand(argument: str) -> str:
        out, at = "", 0
        while at < len(argument):
            if argument[at : at + 2] == "$$":
                out, at = f"{out}$", at + 2
            elif argument[at : at + 2] == "$(" and ")" in argument[at:]:
                out, at = f"{out}EXPANDED", argument.index(")", at) + 1
            else:
                out, at = out + argument[at], at + 1
        return out

    for argument in ("$(HOME)", "$$(HOME)", "$", "$$", "a$b", "$((1))", "$$$(X)"):
        assert expand(manifests.escape(argument)) == argument


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2.0), ("1Gi", 2.0**30), ("1.5k", 1500.0), ("2e3", 2000.0), (3, 3.0)],
)
def test_kubernetes_quantity_is_parsed(text: str | int, value: float) -> None:
    assert parse_quantity(text) == value


def test_invalid_kubernetes_quantity_is_rejected() -> None:
    for text in ("", "Gi", "1 Gi", "1Gi2", "0x10"):
        with pytest.raises(ValueError, match="is not a quantity"):
            parse_quantity(text)
    assert cpu_quantity(0.0001) == "1m"


def test_machine_type_without_a_machines_table_uses_the_general_settings() -> None:
    routes = Routes(parse(GPUS))
    assert routes.of(MachineWanted("n1-standard-4", "NVIDIA_TESLA_T4")).runtime_class == "nvidia"
    assert routes.of(MachineWanted("n1-standard-4")).runtime_class == ""


@pytest.mark.parametrize(
    ("table", "kept"),
    [
        ({}, False),
        ({"cache": "/var/cache/trainshed"}, False),
        ({"cache": "/var/cache/trainshed", "run_as": 0}, True),
        ({"cache": "claim:environments"}, True),
    ],
    ids=["in each Pod", "of root only", "on the node", "in a volume"],
)
def test_python_interpreters_outside_the_cache_use_persistent_volumes_if_possible(
    table: dict[str, Any], kept: bool
) -> None:
    settings = parse({**PLAIN, **table})
    pod = manifests.pod(
        settings,
        Routes(settings).of(NEED.machine),
        None,
        ALLOCATION,
        NEED,
        command=pod_command(),
        cache="/var/lib/cache",
        beside=["/opt/pythons"],
    )
    [container] = pod["spec"]["containers"]
    [mount] = [part for part in container["volumeMounts"] if part["mountPath"] == "/opt/pythons"]
    volumes = {part["name"]: part for part in pod["spec"]["volumes"]}
    assert ("emptyDir" not in volumes[mount["name"]]) is kept
    [own] = [part for part in container["volumeMounts"] if part["mountPath"] == "/var/lib/cache"]
    assert (mount["name"], mount.get("subPath")) != (own["name"], own.get("subPath"))


def test_pod_with_a_custom_image_gets_a_copy_of_python_from_the_configured_image() -> None:
    """The image is unchanged except for the directory of the agent's Python. The Pod does not contain the
    program's command."""
    pod = pod_of(parse(PLAIN), msgspec.structs.replace(NEED, image="registry.example/team/trainer:v1"))
    [replica], [carrier] = pod["spec"]["containers"], pod["spec"]["initContainers"]
    assert (replica["image"], carrier["image"]) == ("registry.example/team/trainer:v1", PLAIN["image"])
    assert replica["command"][:4] == [
        "/opt/trainshed/lib/ld.so",
        "--library-path",
        "/opt/trainshed/lib",
        "/opt/trainshed/bin/python3",
    ]
    assert replica["command"][4:] == [manifests.escape(argument) for argument in pod_command()[1:]]
    assert "workingDir" not in replica, "the image sets the working directory"
    [mount] = [part for part in replica["volumeMounts"] if part["mountPath"] == "/opt/trainshed"]
    assert mount["readOnly"] and mount["name"] == carrier["volumeMounts"][0]["name"]
    assert carrier["securityContext"] == replica["securityContext"]
    # Kubernetes replaces $$ with $.
    carried = carrier["command"][-2].replace("$$", "$")
    assert carried == Path(python_copy.__file__).read_text()
