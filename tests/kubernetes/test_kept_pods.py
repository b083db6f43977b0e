"""Pods that are kept between jobs, on the cluster: who gets one, what is left in it, and when it goes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.kubernetes.conformance_lab import KubernetesEngineLab, lab_settings
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.rootfs import PYTHON
from tests.slurm.nodes import until
from trainshed.core.names import JobUid
from trainshed.engines.conformance.lab import Program
from trainshed.engines.conformance.stage import PRIMARY, SECOND_REPLICA, Stage, staged

pytestmark = pytest.mark.kubernetes

LEAVES = """
import os, subprocess, sys, time
for path in ('/tmp/left', '/dev/shm/left'):
    open(path, 'w').write('a secret')
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
print('left', os.uname().nodename, flush=True)
"""
"""What a job leaves in its Pod."""
FINDS = """
import glob, os
print(sorted(glob.glob('/tmp/le*') + glob.glob('/dev/shm/*')), flush=True)
own = [int(one) for one in os.listdir('/proc') if one.isdigit()]
said = [open(f'/proc/{one}/cmdline').read() for one in own]
print(sum('sleep' + '(600)' in one for one in said), os.environ['HOSTNAME'], flush=True)
"""
"""What the next one finds of that."""
CHANGES = "open('/usr/share/left', 'w').write('of the job'); print('changed', flush=True)"


@pytest.fixture
def cluster(kubernetes_lab: KubernetesLab) -> Iterator[KubernetesLab]:
    yield kubernetes_lab
    kubernetes_lab.clear()


@pytest.fixture(params=[0, 1000])
def lab(cluster: KubernetesLab, tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    return KubernetesEngineLab(cluster, tmp_path, kills=1, run_as=request.param, keep=600.0)


def pods(lab: KubernetesLab) -> dict[str, dict[str, str]]:
    """Those of the service that are not leaving: their labels, by name."""
    found = lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]
    return {
        one["metadata"]["name"]: one["metadata"]["labels"]
        for one in found
        if "deletionTimestamp" not in one["metadata"]
    }


def runs(lab: KubernetesLab, name: str) -> bool:
    """Whether its container does."""
    found = [one for one in lab.get("pods")["items"] if one["metadata"]["name"] == name]
    states = [state["state"] for one in found for state in one["status"]["containerStatuses"]]
    return any("running" in state for state in states)


async def ran(stage: Stage, source: str) -> JobUid:
    """A job of one replica, until it has been given back."""
    uid = stage.job()
    await stage.allocate(uid)
    plan = replace(stage.plan(uid, Program()), argv=(PYTHON, "-u", "-c", source))
    await stage.launch(plan)
    end = await stage.exited(uid)
    assert end.exit.exit_code == 0, stage.lines(uid)
    await stage.engine.release(uid, 1)
    stage.forget(uid)
    return uid


def said(stage: Stage, uid: JobUid) -> list[str]:
    return [line["m"] for line in stage.lines(uid)]


class TestAKeptPod:
    @staged
    async def test_has_nothing_of_the_job_before_and_the_labels_of_the_next(
        self, stage: Stage
    ) -> None:
        assert isinstance(stage.lab, KubernetesEngineLab)
        cluster = stage.lab.cluster
        await ran(stage, LEAVES)
        [before] = pods(cluster)
        second = await ran(stage, FINDS)
        assert said(stage, second) == ["[]", f"0 conformance-{second}-workerpool0-0"]
        for _ in until("the labels of the next job", 20):
            if pods(cluster)[before]["trainshed/job"] == str(second):
                break
        assert list(pods(cluster)) == [before]
        # Somebody deletes it: the next job has another one.
        cluster.kubectl("delete", "pod", before, "--wait=false")
        for _ in until("the end of its agent", 60):
            if not runs(cluster, before):
                break
        third = await ran(stage, FINDS)
        assert said(stage, third)[0] == "[]"
        assert before not in pods(cluster)

    @staged
    async def test_is_all_that_the_next_gang_needs(self, stage: Stage) -> None:
        assert isinstance(stage.lab, KubernetesEngineLab)
        cluster = stage.lab.cluster
        node1, node2 = await stage.nodes()
        names: list[set[str]] = []
        for _ in range(2):
            uid = stage.job()
            await stage.allocate(uid, PRIMARY, SECOND_REPLICA, nodes=[node1, node2])
            gang = (PRIMARY, SECOND_REPLICA)
            await stage.launch(*(stage.plan(uid, Program(prints=1), one) for one in gang))
            for one in gang:
                await stage.exited(uid, one)
            await stage.engine.release(uid, 1)
            stage.forget(uid)
            names.append(set(pods(cluster)))
        assert len(names[0]) == 2 and names[1] == names[0]

    @staged
    async def test_goes_when_the_service_ends(self, stage: Stage) -> None:
        assert isinstance(stage.lab, KubernetesEngineLab)
        await ran(stage, FINDS)
        assert len(pods(stage.lab.cluster)) == 1
        await stage.restart()
        assert not pods(stage.lab.cluster)


def test_an_image_that_a_job_has_changed_is_not_kept(
    cluster: KubernetesLab, tmp_path: Path
) -> None:
    async def body(_: object, stage: Stage) -> None:
        await ran(stage, CHANGES)
        assert not pods(cluster)

    staged(body)(None, KubernetesEngineLab(cluster, tmp_path, kills=1, run_as=0, keep=600.0))


def test_it_makes_way_for_a_pod_of_others(cluster: KubernetesLab, tmp_path: Path) -> None:
    """Which has no room beside it."""

    async def body(_: object, stage: Stage) -> None:
        await ran(stage, FINDS)
        [kept] = pods(cluster)
        [own] = [one for one in cluster.get("pods")["items"] if one["metadata"]["name"] == kept]
        node = own["spec"]["nodeName"]
        free = cluster.get("node", node)["status"]["allocatable"]["memory"]
        theirs = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "theirs"},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": node},
                "containers": [
                    {
                        "name": "waits",
                        "image": lab_settings(cluster)["image"],
                        "imagePullPolicy": "Never",
                        "command": ["sleep", "60"],
                        "resources": {"requests": {"memory": free}},
                    }
                ],
            },
        }
        cluster.kubectl("create", "-f", "-", given=json.dumps(theirs))
        begun = time.monotonic()
        await stage.until(lambda: kept not in pods(cluster), "that it is given back")
        assert time.monotonic() - begun < 20

    staged(body)(None, KubernetesEngineLab(cluster, tmp_path, kills=1, keep=600.0))
