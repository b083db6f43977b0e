"""The users of jobs on a Slurm cluster (docs/slurm.md, "Choose the users that jobs run as"). They are real
users of the lab's machines."""

import json
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.caches import cache_for_users
from tests.commands import execute
from tests.e2e.job_history import make_pipe, timeline, waiting_at
from tests.e2e.running import ROOT, Service, common_place, container_job
from tests.failure_entries import toml
from tests.slurm.lab import USERS, SlurmLab
from tests.slurm.nodes import HUB, until
from tests.slurm.services import configure, on_login_node, service_on_login_node

_TOP = """
capacity = "relaxed"
memory_per_replica = 400
grace = 1
""" + toml("internal_error", back_off=[0.1, 0.2])
_USERS = """
[engines.slurm.users]
vision = "lab-ada"
speech = "lab-bob"
lost = "lab-eve"
"""


@pytest.fixture(scope="module")
def service(slurm_lab: SlurmLab) -> Iterator[Service]:
    place = common_place()
    directory = configure(slurm_lab, "users", _TOP, _USERS, place=place, wrapped=False)
    downloads = cache_for_users() / "uv"
    downloads.mkdir(exist_ok=True)
    downloads.chmod(0o755)  # The mode after a manual run of uv.
    with service_on_login_node(slurm_lab, directory) as started:
        yield started


def submit_job(service: Service, project: str, script: str, **variables: str) -> str:
    jobs, body = f"/v1/projects/{project}/locations/us-central1/customJobs", container_job(script)
    env = [{"name": name, "value": value} for name, value in variables.items()]
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["env"] = env
    return service.call("POST", jobs, body)["name"].rpartition("/")[2]


def test_job_runs_as_the_user_of_its_project(service: Service) -> None:
    script = "import os, sklearn; print(os.getuid(), os.getgid(), os.getgroups())"
    for project, user in (("vision", "lab-ada"), ("speech", "lab-bob")):
        job_id = submit_job(service, project, script)
        assert service.finish(job_id)["state"] == "SUCCEEDED", timeline(service, job_id)
        number = USERS[user]
        assert service.lines(job_id) == [f"{number} {number} [{number}]"]


def test_job_of_a_user_without_partition_access_fails_with_the_reason(
    slurm_lab: SlurmLab, service: Service
) -> None:
    """Up to 23.02, Slurm rejects the job at once. Since 24.11, the job waits forever."""
    slurm_lab.slurm("scontrol", "update", "partition=main", "allowgroups=lab-bob")
    try:
        job_id = submit_job(service, "vision", "pass")
        assert service.finish(job_id)["state"] == "FAILED"
        messages = "\n".join(entry["message"] for entry in timeline(service, job_id))
        assert "permitted to use this partition" in messages
    finally:
        slurm_lab.slurm("scontrol", "update", "partition=main", "allowgroups=ALL")


def test_doctor_reports_missing_and_rejected_users(slurm_lab: SlurmLab, service: Service) -> None:
    slurm_lab.slurm("scontrol", "update", "partition=hi", "allowgroups=lab-bob")
    config = service.data.parent / "doctor.toml"
    config.write_text(
        f'engine = "slurm"\n[engines.slurm]\naddress = "{slurm_lab.outside}"\nshared = true\n'
        f'partition = "hi"\n{_USERS}'
    )
    command = ["trainshed", "doctor", "--format", "json", "--config", str(config)]
    command += ["--data", str(service.data)]
    try:
        argv, environment = on_login_node(slurm_lab, command)
        done = execute(*argv, env=environment)
    finally:
        slurm_lab.slurm("scontrol", "update", "partition=hi", "allowgroups=ALL")
    findings = {shown["about"]: shown for shown in json.loads(done.stdout)}
    finding = findings["jobs in Slurm"]
    assert finding["verdict"] == "bad"
    assert "run as lab-eve" in finding["text"]
    assert "jobs of user lab-ada in hi: " in finding["text"] and "not permitted" in finding["text"]
    assert "user lab-bob" not in finding["text"]


_SPY_PROGRAM = """
import json, os, stat, sys
theirs, places, word, checkout = json.load(sys.stdin)
got, seen = [], 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.stat("/proc/" + pid).st_uid != theirs:
            continue
        seen += 1
        with open("/proc/%s/cmdline" % pid) as file:
            if word in file.read():
                got.append("command line of " + pid)
    except OSError:
        continue
    for what in ("environ", "maps", "mem", "fd", "cwd/.", "root/."):
        try:
            path = "/proc/%s/%s" % (pid, what)
            if os.listdir(path) if "/." in what or what == "fd" else open(path, "rb").read(1):
                got.append(path)
        except OSError:
            pass
for place in places:
    for directory, below, names in os.walk(place):
        if directory == checkout:
            below.clear()  # Of what these tests share some is for everybody.
            continue
        for path in [directory, *(os.path.join(directory, name) for name in names)]:
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode) and os.access(path, os.R_OK):
                with open(path, "rb") as file:
                    if word.encode() in file.read(1 << 20):
                        got.append("word in " + path)
            is_ours = status.st_uid == os.getuid() or status.st_mode & stat.S_ISVTX
            is_pipe = stat.S_ISLNK(status.st_mode) or stat.S_ISFIFO(status.st_mode)
            if not is_pipe and not is_ours and os.access(path, os.W_OK):
                got.append("may write " + path)
print(json.dumps([seen, got]))
"""


def as_bob(lab: SlurmLab, machine: str, argv: Sequence[str], stdin: Any = None) -> tuple[int, str]:
    """Return the output of a process of user lab-bob on a machine, outside of any job."""
    number = USERS["lab-bob"]
    own = ["setpriv", f"--reuid={number}", f"--regid={number}", "--init-groups", "--", *argv]
    done = execute(*lab.argv(machine, own), input=json.dumps(stdin), timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_user_cannot_access_the_job_of_another_user(slurm_lab: SlurmLab, service: Service) -> None:
    """The attacker has processes of the same user on the job's node and on the service's machine, restricted
    only by Unix and Slurm."""
    word, place = secrets.token_hex(16), service.data.parent
    gate = make_pipe(common_place() / f"gate-{secrets.token_hex(8)}")
    script = f"import os\nprint('up', os.environ['WORD'], flush=True)\n{waiting_at(gate)}"
    job_id = submit_job(service, "vision", script, WORD=word)
    lines = service.follow(job_id)
    assert next(lines) == f"up {word}"
    [replica] = service.call("GET", f"/trainshed/v1/jobs/{job_id}")["replicas"]
    node = replica["node"]
    # --- files that he reads or writes
    names = ("python3", f"python3.{sys.version_info.minor}")
    # An interpreter that all users may run.
    python = next(filter(None, (shutil.which(name, path="/usr/bin:/usr/local/bin") for name in names)))
    spying = [python, "-I", "-S", "-c", _SPY_PROGRAM]
    cache = cache_for_users()
    # He cannot list the cache, but he may know names in it.
    on_node = ["/tmp", "/dev/shm", str(cache), *(f"{cache}/{name}" for name in ("environments", "uv"))]
    for machine, places, least in ((node, on_node, 3), (HUB, [str(place)], 0)):
        facts = USERS["lab-ada"], places, word, str(ROOT)
        code, printed = as_bob(slurm_lab, machine, spying, facts)
        assert code == 0, printed
        seen, got = json.loads(printed)
        # The spy sees that the agent, the shim and the program exist.
        assert seen >= least and not got, (machine, seen, got)
    # --- requests to Slurm
    name, number = slurm_lab.slurm("squeue", "-h", "-u", "lab-ada", "-o", "%j %i").split()
    assert f"-{job_id}-" in name
    assert as_bob(slurm_lab, HUB, ["scancel", number])[0] != 0
    code, printed = as_bob(slurm_lab, HUB, ["srun", f"--jobid={number}", "--overlap", "id"])
    assert code != 0, printed
    # --- a job with the name of her allocation does not belong to the service, and hers is unchanged
    forged = ["salloc", "--no-shell", f"--job-name={name}", f"--nodelist={node}", "--mem=100"]
    assert as_bob(slurm_lab, HUB, forged)[0] == 0
    assert service.call("GET", f"/trainshed/v1/jobs/{job_id}")["state"] == "RUNNING"
    gate.open("w").close()
    assert service.finish(job_id)["state"] == "SUCCEEDED"
    assert service.lines(job_id) == [f"up {word}"]
    for _ in until("the end of her allocation"):
        if not slurm_lab.slurm("squeue", "-h", "-u", "lab-ada"):
            break
    assert name in slurm_lab.slurm("squeue", "-h", "-u", "lab-bob", "-o", "%j")
    slurm_lab.slurm("scancel", "-u", "lab-bob")
