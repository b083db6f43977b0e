"""A complete service of an unprivileged user on a login node, which has only Slurm's own commands
(docs/slurm.md, "Choose the users that jobs run as")."""

import os
from collections.abc import Iterator

import pytest

from tests.contract.ordinary_user import NOBODY
from tests.e2e.job_history import timeline
from tests.e2e.running import Service, common_place, container_job, submit
from tests.slurm.lab import SlurmLab
from tests.slurm.services import configure, service_on_login_node

GANG = """
import json, os, socket, time
peers = [p for l in json.loads(os.environ["CLUSTER_SPEC"])["cluster"].values() for p in l]
host, port = peers[int(os.environ["RANK"])].split(":")
listener = socket.create_server((host, int(port)))
links = []
for peer in peers:
    while True:
        try:
            links.append(socket.create_connection(peer.split(":")))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
links += [listener.accept()[0] for _ in peers]  # everybody has met everybody
print("uid", os.getuid(), "peers", len(peers), "port", port, flush=True)
for link in links:
    link.shutdown(socket.SHUT_WR)
for link in links:
    link.recv(1)  # everybody has printed, before the primary's end stops the others
"""
_TOP = 'capacity = "relaxed"\nmemory_per_replica = 300\ngrace = 1'


@pytest.fixture(scope="module")
def service(slurm_lab: SlurmLab) -> Iterator[Service]:
    directory = configure(slurm_lab, "nobody", _TOP, place=common_place(), wrapped=False)
    os.chown(directory, NOBODY, NOBODY)
    with service_on_login_node(slurm_lab, directory, NOBODY) as started:
        yield started


def test_unprivileged_gang_restarts_a_lost_worker_in_place(slurm_lab: SlurmLab, service: Service) -> None:
    # The worker may be killed as soon as it has printed its line.
    marks = "import os, time\nfirst = not os.path.exists('second')\nopen('second', 'w').close()\n"
    waits = "print('uid', os.getuid(), flush=True)\ntime.sleep(600 * first)\n"
    gang = submit(service, container_job(GANG, pools=(1, 2)))
    restarted = submit(service, container_job(marks + waits))
    assert service.finish(gang)["state"] == "SUCCEEDED", timeline(service, gang)
    lines = [line.rpartition(" port ")[0] for line in service.lines(gang)]
    assert lines == [f"uid {NOBODY} peers 3"] * 3
    for line in service.follow(restarted):
        if line == f"uid {NOBODY}":
            break
    service.call("POST", f"/trainshed/v1/jobs/{restarted}:drill", {"kind": "kill"})
    assert service.finish(restarted)["state"] == "SUCCEEDED", timeline(service, restarted)
    assert service.lines(restarted) == [f"uid {NOBODY}"] * 2
    [replica] = service.call("GET", f"/trainshed/v1/jobs/{restarted}")["replicas"]
    assert replica["incarnation"] == 2, replica
