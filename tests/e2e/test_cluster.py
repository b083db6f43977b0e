"""A job's replicas on one machine: who they are told they are, and that they reach each other
(spec/program)."""

import json
from typing import Any

import pytest

from tests.e2e.running import Service, container_job, submit

BUCKET = "trainshed"

_MEMBER = """
import json, os, socket, threading, time

cluster = json.loads(os.environ["CLUSTER_SPEC"])
me = cluster["task"]
mine = cluster["cluster"][me["type"]][me["index"]]
everybody = sorted(name for names in cluster["cluster"].values() for name in names)
others = [name for name in everybody if name != mine]

def reach(host, port, word):
    # A peer may not have bound its port yet: it was started in the same moment.
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=20) as peer:
                peer.sendall(word.encode() + b"\\n")
                return peer.makefile().readline().strip()
        except ConnectionRefusedError:
            time.sleep(0.02)

def answer(server, count, word):
    heard = []
    for _ in range(count):
        caller = server.accept()[0]
        with caller:
            heard.append(caller.makefile().readline().strip())
            caller.sendall(word.encode() + b"\\n")
    return heard

host, port = mine.split(":")
server = socket.create_server((host, int(port)))
heard = []
serving = threading.Thread(target=lambda: heard.extend(answer(server, len(others), mine)))
serving.start()

ranks = []
rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
if rank == "0":
    # As the rendezvous of env:// does: the store listens at every address of its host.
    store = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    meeting = threading.Thread(target=lambda: ranks.extend(answer(store, int(world) - 1, "0")))
    meeting.start()

# The primary is called last: it ends the job.
said = {}
for name in others[1:] + others[:1]:
    if name == cluster["cluster"]["workerpool0"][0]:
        continue
    said[name] = reach(*name.split(":"), mine)
report = {
    "host": socket.gethostname(), "address": socket.gethostbyname(host), "mine": mine,
    "rank": rank, "world": world, "master": os.environ.get("MASTER_ADDR"), "said": said,
}
print("REPORT " + json.dumps(report), flush=True)
if rank == "0":
    meeting.join()
    serving.join()
    print("HEARD " + json.dumps([sorted(heard), sorted(ranks)]))
else:
    if rank is not None:
        reach(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"], rank)
    reach(*cluster["cluster"]["workerpool0"][0].split(":"), mine)
"""


class Gang:
    """A finished job of primary, two workers and an evaluator, and what its replicas printed."""

    replicas = ("workerpool0-0", "workerpool1-0", "workerpool1-1", "workerpool3-0")

    def __init__(self, service: Service) -> None:
        self.body = container_job(_MEMBER, pools=(1, 2, 0, 1), name="gang")
        self.job_id = submit(service, self.body)
        self.view = service.finish(self.job_id)
        self.lines = {name: service.lines(self.job_id, name) for name in self.replicas}

    def said(self, replica: str, word: str) -> Any:
        found = [line for line in self.lines[replica] if line.startswith(f"{word} ")]
        assert found, (replica, self.lines[replica], self.view)
        return json.loads(found[-1].removeprefix(word))

    def report(self, replica: str) -> Any:
        return self.said(replica, "REPORT")


@pytest.fixture(scope="module")
def gang(service: Service) -> Gang:
    return Gang(service)


def test_four_replicas_bind_port_2222_and_reach_each_other_by_name(gang: Gang) -> None:
    """spec/program#hostnames: every replica has its own hostname, and all can bind port 2222 at once."""
    assert gang.view["state"] == "SUCCEEDED", gang.view.get("error")
    reports = {name: gang.report(name) for name in gang.replicas}
    names = {report["mine"] for report in reports.values()}
    assert len(names) == len({report["host"] for report in reports.values()}) == 4
    primary = reports["workerpool0-0"]["mine"]
    for report in reports.values():
        assert report["mine"] == f"{report['host']}:2222"
        # Each answered with its own name: the name led to the right replica.
        assert report["said"] == {name: name for name in names - {primary, report["mine"]}}
    heard, _ = gang.said("workerpool0-0", "HEARD")
    assert heard == sorted(names - {primary})


def test_env_rendezvous_of_primary_and_workers(gang: Gang) -> None:
    """spec/program#ranks: MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE as PyTorch's env:// uses them."""
    place = {name: gang.report(name) for name in gang.replicas}
    ranked = {name: (said["rank"], said["world"]) for name, said in place.items()}
    assert ranked == {
        "workerpool0-0": ("0", "3"),
        "workerpool1-0": ("1", "3"),
        "workerpool1-1": ("2", "3"),
        "workerpool3-0": (None, None),
    }
    primary = place["workerpool0-0"]["host"]
    assert {said["master"] for said in place.values() if said["rank"]} == {primary}
    _, ranks = gang.said("workerpool0-0", "HEARD")
    assert ranks == ["1", "2"]


_STORAGE = """
import os, pathlib
from google.cloud import storage

bucket = storage.Client().bucket("trainshed")
here = pathlib.Path("/gcs/trainshed")
(here / "deep/er").mkdir(parents=True)
(here / "deep/er/one.txt").write_text("by file")
bucket.blob("deep/er/two.txt").upload_from_string("by client")
print("READ", bucket.blob("deep/er/one.txt").download_as_text(), "+", (here / "deep/er/two.txt").read_text())
print("LIST", sorted(blob.name for blob in bucket.list_blobs(prefix="deep/")))
model = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
model.mkdir(parents=True)
(model / "model.txt").write_text("weights")
pathlib.Path("/var/hypertune/output.metrics").write_text("{}")
print("METRICS", [name for name in os.listdir("/var/hypertune") if name[0] != "."])
"""


def test_buckets_and_metrics_from_inside(service: Service) -> None:
    """spec/program#metrics-file: gs:// by google-cloud-storage and /gcs/BUCKET are one and the same;
    /var/hypertune is writable."""
    body = container_job(_STORAGE)
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": f"gs://{BUCKET}/out"}
    job_id = submit(service, body)
    view = service.finish(job_id)
    said = service.lines(job_id)
    assert view["state"] == "SUCCEEDED", (view.get("error"), said)
    assert said[-3:] == [
        "READ by file + by client",
        "LIST ['deep/er/one.txt', 'deep/er/two.txt']",
        "METRICS ['output.metrics']",
    ]
    # What a job wrote as a file is an object for everybody.
    found = service.call("GET", f"/storage/v1/b/{BUCKET}/o?prefix=out/")
    assert [item["name"] for item in found["items"]] == ["out/model/model.txt"]
