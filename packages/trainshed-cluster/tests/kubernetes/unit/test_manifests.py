"""The Pod of a replica, compared with files under tests.golden.kubernetes; set UPDATE_GOLDEN=1 to write
them."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainshed.core.capacity import MachineWanted
from trainshed.core.names import JobUid
from trainshed_cluster.kubernetes import carried_python, manifests
from trainshed_cluster.kubernetes.build import entry
from trainshed_cluster.kubernetes.objects import Pod, cpu_quantity, parse_quantity
from trainshed_cluster.kubernetes.routes import Routes
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.cluster import HoldName, NodeNeed, Owner

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
HOLD = HoldName("abc", JobUid(7), 2, 3)
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


def made(settings: KubernetesSettings, need: NodeNeed) -> dict[str, Any]:
    routes = Routes(settings)
    return manifests.pod(
        settings,
        routes.of(need.machine),
        routes.accelerator(kind) if (kind := need.machine.accelerator) else None,
        HOLD,
        need,
        command=entry(),
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
def test_the_pod_of_a_replica(name: str, table: dict[str, Any], need: NodeNeed) -> None:
    pod = made(parse(table), need)
    path = GOLDEN / f"pod_{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(pod, indent=2) + "\n")
    assert pod == json.loads(path.read_text())


def test_a_pod_is_known_again_by_its_hold_alone() -> None:
    pod = msgspec.convert(made(parse(PLAIN), NEED), Pod)
    assert manifests.hold_of(pod, "abc") == HOLD
    assert manifests.hold_of(pod, "other") is None
    metadata = msgspec.structs.replace(pod.metadata, annotations={manifests.HOLD: "mine"})
    assert manifests.hold_of(msgspec.structs.replace(pod, metadata=metadata), "abc") is None


def test_two_attempts_and_two_places_have_pods_of_other_names() -> None:
    names = {
        manifests.pod_name(NEED, HoldName("abc", JobUid(7), attempt, part))
        for attempt in (1, 2)
        for part in (0, 1)
    }
    assert len(names) == 4
    assert manifests.pod_name(NEED, HOLD) == "cmle-training-workerpool0-0123abcd-1-2-3"


def test_what_follows_a_pod_of_the_same_hold_has_another_name() -> None:
    """What has ended may keep its name for a minute."""
    settings = parse(PLAIN)
    route = Routes(settings).of(NEED.machine)
    for again in (0, 1, 12):
        made_again = manifests.pod(
            settings, route, None, HOLD, NEED, command=("x",), cache="/c", again=again
        )
        assert made_again["metadata"]["name"] == manifests.pod_name(NEED, HOLD, again)
        assert manifests.again_of(msgspec.convert(made_again, Pod)) == again
    assert manifests.pod_name(NEED, HOLD, 1) == "cmle-training-workerpool0-0123abcd-1-2-3-1"


def test_a_hosts_file_of_its_own_is_made_where_kubernetes_own_cannot_be_written() -> None:
    """By whom it is not root's, and of Pods that have peers: another container costs their start."""
    gang = msgspec.structs.replace(NEED, gang_size=2)
    assert "initContainers" not in made(parse(PLAIN), NEED)["spec"]
    assert "initContainers" not in made(parse({**PLAIN, "run_as": 0}), gang)["spec"]
    assert len(made(parse(PLAIN), gang)["spec"]["initContainers"]) == 1


def test_nothing_of_a_command_is_taken_for_a_variable() -> None:
    """Kubernetes' rule: $(NAME) is a variable, $$ is $, any other $ is itself."""

    def expanded(argument: str) -> str:
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
        assert expanded(manifests.escaped(argument)) == argument


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("2", 2.0), ("1Gi", 2.0**30), ("1.5k", 1500.0), ("2e3", 2000.0), (3, 3.0)],
)
def test_quantities(text: str | int, value: float) -> None:
    assert parse_quantity(text) == value


def test_what_is_no_quantity_is_refused() -> None:
    for text in ("", "Gi", "1 Gi", "1Gi2", "0x10"):
        with pytest.raises(ValueError, match="is not a quantity"):
            parse_quantity(text)
    assert cpu_quantity(0.0001) == "1m"


def test_machines_without_a_route_go_by_the_plain_settings() -> None:
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
    ids=["in each Pod", "of root's making alone", "on the node", "in a volume"],
)
def test_pythons_beside_the_cache_are_kept_with_it_where_they_can_be(
    table: dict[str, Any], kept: bool
) -> None:
    settings = parse({**PLAIN, **table})
    pod = manifests.pod(
        settings,
        Routes(settings).of(NEED.machine),
        None,
        HOLD,
        NEED,
        command=entry(),
        cache="/var/lib/cache",
        beside=["/opt/pythons"],
    )
    [container] = pod["spec"]["containers"]
    [mount] = [part for part in container["volumeMounts"] if part["mountPath"] == "/opt/pythons"]
    volumes = {part["name"]: part for part in pod["spec"]["volumes"]}
    assert ("emptyDir" not in volumes[mount["name"]]) is kept
    [own] = [part for part in container["volumeMounts"] if part["mountPath"] == "/var/lib/cache"]
    assert (mount["name"], mount.get("subPath")) != (own["name"], own.get("subPath"))


def test_a_jobs_own_image_is_the_pods_and_gets_our_python_brought() -> None:
    """Nothing of the image is changed but where the agent's Python lies; what it starts is no part of the
    Pod."""
    pod = made(
        parse(PLAIN), msgspec.structs.replace(NEED, image="registry.example/team/trainer:v1")
    )
    [replica], [carrier] = pod["spec"]["containers"], pod["spec"]["initContainers"]
    assert (replica["image"], carrier["image"]) == (
        "registry.example/team/trainer:v1",
        PLAIN["image"],
    )
    assert replica["command"][:4] == [
        "/opt/trainshed/lib/ld.so",
        "--library-path",
        "/opt/trainshed/lib",
        "/opt/trainshed/bin/python3",
    ]
    assert replica["command"][4:] == [manifests.escaped(argument) for argument in entry()[1:]]
    assert "workingDir" not in replica, "it begins where the image says"
    [mount] = [part for part in replica["volumeMounts"] if part["mountPath"] == "/opt/trainshed"]
    assert mount["readOnly"] and mount["name"] == carrier["volumeMounts"][0]["name"]
    assert carrier["securityContext"] == replica["securityContext"]
    # What Kubernetes makes of $$ is what it was.
    carried = carrier["command"][-2].replace("$$", "$")
    assert carried == Path(carried_python.__file__).read_text()
