"""A job that is after another job of the same service on the same node of a cluster: what it gets."""

import json
import secrets
from collections.abc import Sequence
from typing import Any

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, common_place, container_job
from tests.e2e.stories import at, make_pipe
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import AGENTS

_SPY = """
import json, os, subprocess
word = {backwards!r}[::-1].encode()
got = set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    for what in ("cmdline", "environ"):
        try:
            with open(f"/proc/{{pid}}/{{what}}", "rb") as file:
                if word in file.read():
                    got.add("processes")
        except OSError:
            pass
for kind, places in {places!r}.items():
    for place in places:
        for directory, _, names in os.walk(place):
            for name in names:
                path = os.path.join(directory, name)
                try:
                    if os.path.isfile(path):
                        with open(path, "rb") as file:
                            if word in file.read(1 << 20):
                                got.add(kind)
                except OSError:
                    pass
for command in ("scancel", "squeue"):
    try:
        done = subprocess.run([command, *{arguments!r}[command]], capture_output=True, timeout=20)
        if done.returncode == 0:
            got.add(command)
    except (OSError, subprocess.SubprocessError):
        pass
print("got", json.dumps(sorted(got)), flush=True)
"""


def submitted(service: Service, project: str, script: str, **env: str) -> str:
    body: dict[str, Any] = container_job(script)
    container = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    path = CUSTOM_JOBS.replace(PROJECT, project)
    return service.call("POST", path, body)["name"].rpartition("/")[2]


def spied(
    lab: SlurmLab, service: Service, project: str = PROJECT, directories: Sequence[str] = (AGENTS,)
) -> list[str]:
    """What a job got of another one of that project: "processes" (command line, environment), "node" (files
    on the node's disk), "service" (files of the service), "scancel" (its allocation), "squeue" (an answer of
    Slurm's). `directories`: where agents write on nodes."""
    others = [n["name"] for n in service.call("GET", "/trainshed/v1/nodes")["nodes"]][1:]
    lab.await_idle()
    word = secrets.token_hex(16)
    gate = make_pipe(common_place() / f"gate-{secrets.token_hex(8)}")
    for node in others:
        service.call("POST", f"/trainshed/v1/nodes/{node}:drain", {})
    try:
        script = f"import os\nprint('up', os.environ['WORD'], flush=True)\n{at(gate)}"
        victim = submitted(service, project, script, WORD=word)
        assert next(service.follow(victim)) == f"up {word}"
        lines = lab.slurm("squeue", "-h", "-t", "RUNNING", "-o", "%i %j").splitlines()
        [number] = [line.split()[0] for line in lines if f"-{victim}-" in line]
        spy = _SPY.format(
            backwards=word[::-1],
            places={
                "node": ["/tmp", "/dev/shm", *directories],
                "service": [str(service.data.parent)],
            },
            arguments={"scancel": [number], "squeue": ["-h"]},
        )
        attacker = submitted(service, project, spy)
        assert service.finish(attacker, 120)["state"] == "SUCCEEDED"
        gate.write_text("")
        assert service.finish(victim, 120)["state"] == "SUCCEEDED"
    finally:
        for node in others:
            service.call("POST", f"/trainshed/v1/nodes/{node}:undrain", {})
    [got] = [line for line in service.lines(attacker) if line.startswith("got ")]
    return json.loads(got.removeprefix("got "))
