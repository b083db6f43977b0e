"""Events of the cluster and the engine's reactions: cordoned nodes, and Pods that are evicted, deleted,
unschedulable or without an image."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.conformance.lab import OnTerm, Program
from tests.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, run_with_stage
from tests.kubernetes import chart
from tests.kubernetes.conformance_lab import KubernetesEngineLab, lab_settings
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.rootfs import PYTHON
from tests.slurm.nodes import until
from trainshed.core.failure.evidence import Cause
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.findings import Verdict
from trainshed_cluster.kubernetes.doctor import examine_kubernetes

pytestmark = pytest.mark.kubernetes

FOREVER = Program(prints=1, runs=None)
_SEVERAL = 6


@pytest.fixture
def cluster(kubernetes_lab: KubernetesLab) -> Iterator[KubernetesLab]:
    yield kubernetes_lab
    kubernetes_lab.clear()


def engine_lab(lab: KubernetesLab, directory: Path, **settings: Any) -> KubernetesEngineLab:
    return KubernetesEngineLab(lab, directory, kills=1, **settings)


def our_pods(lab: KubernetesLab) -> list[dict[str, Any]]:
    return lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]


def test_evicted_pod_gets_its_grace_period_and_a_notice(cluster: KubernetesLab, tmp_path: Path) -> None:
    """The eviction of `kubectl drain`."""

    async def body(_: object, stage: Stage) -> None:
        leaves = Program(prints=1, runs=None, on_term=OnTerm.EXIT, term_code=0)
        uid = await stage.run(leaves)
        await stage.wait_for_lines(uid, 1)
        [pod] = our_pods(cluster)
        eviction = {
            "apiVersion": "policy/v1beta1",
            "kind": "Eviction",
            "metadata": {"name": pod["metadata"]["name"], "namespace": "default"},
        }
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/eviction"
        cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        end = await stage.end(uid)
        assert isinstance(end, ReplicaExited)
        assert end.exit.exit_code == 0 and end.exit.stopped, "it was stopped"
        assert end.loss is Cause.POD_EVICTED and "was deleted or evicted" in str(end.cause)
        # The replica's next run (incarnation) gets another Pod.
        await stage.launch(stage.plan(uid, Program(prints=1), incarnation=2))
        assert (await stage.wait_for_exit(uid, incarnation=2)).exit.exit_code == 0

    run_with_stage(body)(None, engine_lab(cluster, tmp_path))


def test_force_deleted_pod_blocks_its_replica_until_the_lease_expires(
    cluster: KubernetesLab, tmp_path: Path
) -> None:
    async def body(_: object, stage: Stage) -> None:
        uid = await stage.run(Program(prints=1, ticks=0.05, runs=None))
        await stage.wait_for_lines(uid, 2)
        cluster.unplug("node1")
        try:
            cluster.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")
            assert not our_pods(cluster)
            end = await stage.end(uid)
            assert isinstance(end, ReplicaLost) and end.loss is Cause.AGENT_LOST
            lines = len(stage.lines(uid))
            await stage.for_a_while()
            assert len(stage.lines(uid)) == lines
        finally:
            cluster.replug("node1")

    run_with_stage(body)(None, engine_lab(cluster, tmp_path))
    cluster.await_ready()


CLIENT_PROGRAM = """
import socket, sys, time
while True:
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), 1) as line:
            print(sys.argv[1], line.recv(100).decode(), flush=True)
    except OSError as error:
        print('nobody', type(error).__name__, flush=True)
    time.sleep(0.2)
"""
SERVER_PROGRAM = """
import socket, sys
with socket.create_server(('', int(sys.argv[1]))) as server:
    while True:
        line, _ = server.accept()
        with line:
            line.sendall(sys.argv[2].encode())
"""


@pytest.mark.parametrize("run_as", [0, 1000], ids=["root", "restricted"])
def test_hostname_resolves_to_the_new_pod_of_a_moved_replica(
    cluster: KubernetesLab, tmp_path: Path, run_as: int
) -> None:
    """spec/program#hostnames, on a cluster without DNS."""

    async def body(_: object, stage: Stage) -> None:
        def plan(replica: ReplicaId, script: str, *arguments: object, incarnation: int = 1) -> LaunchPlan:
            own = stage.plan(uid, FOREVER, replica, incarnation=incarnation)
            return msgspec.structs.replace(own, argv=(PYTHON, "-c", script, *map(str, arguments)))

        uid = stage.job()
        _, peer = await stage.allocate(uid, PRIMARY, SECOND_REPLICA)
        assert peer.host == peer.hostname
        await stage.engine.launch(
            [
                plan(PRIMARY, CLIENT_PROGRAM, peer.host, peer.port),
                plan(SECOND_REPLICA, SERVER_PROGRAM, peer.port, "first"),
            ]
        )
        await stage.until(lambda: _last(stage, uid) == f"{peer.host} first", "the first answer")
        [pod] = [item for item in our_pods(cluster) if item["spec"]["hostname"] == peer.hostname]
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
        await stage.end(uid, SECOND_REPLICA)
        nodes = ["node1", "node2"]
        _, moved = await stage.allocate(uid, PRIMARY, SECOND_REPLICA, nodes=nodes)
        assert (moved.host, moved.port) == (peer.host, peer.port)
        assert moved.address != peer.address
        await stage.launch(plan(SECOND_REPLICA, SERVER_PROGRAM, peer.port, "second", incarnation=2))
        await stage.until(lambda: _last(stage, uid) == f"{peer.host} second", "the second answer")
        assert not stage.ends(uid)

    run_with_stage(body)(None, engine_lab(cluster, tmp_path, run_as=run_as, grace=1.0))


def _last(stage: Stage, uid: JobUid) -> object:
    lines = stage.lines(uid)
    return lines[-1]["m"] if lines else None


def test_helm_chart_grants_all_permissions_that_the_engine_needs(
    cluster: KubernetesLab, tmp_path: Path
) -> None:
    """The rights of the chart, granted to a user without any other right."""
    rights = chart.render_chart(user="trainshed")
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": rights})
    cluster.kubectl("apply", "-f", "-", stdin=manifest)

    async def body(_: object, stage: Stage) -> None:
        uid = await stage.run(Program(prints=1))
        assert (await stage.wait_for_exit(uid)).exit.exit_code == 0

    own = {"kubeconfig": str(cluster.service_kubeconfig)}
    try:
        run_with_stage(body)(None, engine_lab(cluster, tmp_path, **own))
    finally:
        cluster.kubectl("delete", "--wait=false", "-f", "-", stdin=manifest)
    assert not our_pods(cluster)


def test_doctor_command_lists_missing_kubernetes_permissions(cluster: KubernetesLab) -> None:
    """A user without rights gets all findings. A user with all rights gets none."""
    table = lab_settings(cluster)
    findings = {finding.about: finding for finding in examine_kubernetes(table)}
    assert {finding.verdict for finding in findings.values()} == {Verdict.GOOD}, findings
    assert findings["Kubernetes nodes"].text == "2 of 2 take jobs."
    nobody = {**table, "kubeconfig": str(cluster.service_kubeconfig), "namespaces": {"*": "elsewhere"}}
    bad = [finding for finding in examine_kubernetes(nobody) if finding.verdict is Verdict.BAD]
    assert any("may not watch nodes of the cluster" in finding.text for finding in bad)
    assert any("may not create pods of namespace elsewhere" in finding.text for finding in bad)
    assert not our_pods(cluster)


def test_each_pod_causes_only_three_api_calls_from_creation_to_deletion(
    cluster: KubernetesLab, tmp_path: Path
) -> None:
    """The API server counts the calls. In addition, each start makes one list of each kind and watches. While
    an agent is silent, its node is queried at most every two seconds."""
    before = len(cluster.api_calls("httpx"))

    async def body(_: object, stage: Stage) -> None:
        uids = [await stage.run(Program(prints=1)) for _ in range(_SEVERAL)]
        for uid in uids:
            assert (await stage.wait_for_exit(uid)).exit.exit_code == 0

    run_with_stage(body)(None, engine_lab(cluster, tmp_path))
    for _ in until("the end of all Pods", 60):
        if not our_pods(cluster):
            break
    calls = Counter(cluster.api_calls("httpx")[before:])
    # A WebSocket starts with a GET request, such as an attach here.
    of_pods = {"create pods": _SEVERAL, "get pods/attach": _SEVERAL, "delete pods": _SEVERAL}
    doubts = calls["list nodes"] - 1
    once = {"list pods": 1 + doubts, "list nodes": 1 + doubts}
    watches = ("watch pods", "watch nodes")
    assert {what: n for what, n in calls.items() if what not in watches} == of_pods | once
