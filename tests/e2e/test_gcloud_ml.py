"""The real `gcloud ai-platform` against a real service: the public guide's two ways to submit, and all that
people do to a job afterwards (spec/submit, spec/lifecycle, spec/program, spec/runtimes,
spec/clients#surface).

The jobs are submitted once, side by side, because gcloud looks whether a job is over every ten seconds.
"""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import RUNTIME_VERSION
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.packages import wheel
from tests.e2e.running import PROJECT, REGION, Service

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "gcloud-ml"
PART = "extra_part-0.1-py3-none-any.whl"

SHOW = """
import json, os, sys
import extra_part
print("PART", extra_part.VALUE)
print("ARGV", json.dumps(sys.argv[1:]))
print("TF_CONFIG", os.environ.get("TF_CONFIG"))
print("CLUSTER_SPEC", os.environ.get("CLUSTER_SPEC"))
"""

MEET = """
import json, os, signal, socket, time
config = json.loads(os.environ["TF_CONFIG"])
print("TF_CONFIG", json.dumps(config), flush=True)
print("CLUSTER_SPEC", os.environ.get("CLUSTER_SPEC"), flush=True)
host, port = config["cluster"]["chief"][0].split(":")
own = socket.gethostname()
others = sum(len(hosts) for hosts in config["cluster"].values()) - 1
if config["task"]["type"] == "chief":
    door = socket.create_server((own, int(port)), backlog=64)
    print("READY", flush=True)
    guests = [door.accept()[0] for _ in range(others)]
    print("MET", *sorted(guest.makefile().readline().strip() for guest in guests), flush=True)
else:
    socket.create_server((own, 2222))
    while True:
        try:
            door = socket.create_connection((host, int(port)))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    door.sendall((own + "\\n").encode())
    # It would stay for ever: the job ends with its master (spec/lifecycle#success).
    signal.pause()
"""

FAIL = """
import sys
print("about to fail")
print("out of luck", file=sys.stderr)
raise SystemExit(7)
"""

WAIT = """
import signal
print("WAITING", flush=True)
signal.pause()
"""

CUSTOM = """
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerType: complex_model_m
  parameterServerType: large_model
  workerCount: 9
  parameterServerCount: 3
"""

TOO_SHORT = """
trainingInput:
  scheduling:
    maxWaitTime: 1799s
"""


@dataclass(frozen=True)
class Submitted:
    """What `jobs submit training` answered, by job id."""

    by: dict[str, CompletedProcess[str]]
    service: Service

    def finish(self, job_id: str) -> dict[str, Any]:
        return self.service.finish(ref(job_id))

    def lines(self, job_id: str, replica: str | None = None) -> list[str]:
        return self.service.lines(ref(job_id), replica)


def ref(job_id: str) -> str:
    return quote(f"projects/{PROJECT}/jobs/{job_id}", safe="")


def said(lines: list[str], word: str) -> Any:
    """The JSON behind the first line that begins with `word`."""
    (answer,) = [line for line in lines if line.startswith(word + " ")]
    return json.loads(answer.removeprefix(word)) if not answer.endswith(" None") else None


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree as the guide has it, and a package that it depends on."""
    root = tmp_path_factory.mktemp("source")
    package = root / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    programs = {"show": SHOW, "meet": MEET, "fail": FAIL, "wait": WAIT}
    for name, text in programs.items():
        (package / f"{name}.py").write_text(text)
    (root / "config.yaml").write_text(CUSTOM)
    (root / "short.yaml").write_text(TOO_SHORT)
    (root / PART).write_bytes(wheel("extra_part", "VALUE = 42\n"))
    return root


def training(job_id: str, module: str, *more: str) -> tuple[str, ...]:
    return (
        *("ai-platform", "jobs", "submit", "training", job_id),
        *("--package-path", "trainer/", "--module-name", f"trainer.{module}", "--region", REGION),
        *RUNTIME_VERSION,
        *more,
    )


@pytest.fixture(scope="module")
def submitted(gcloud: Gcloud, source: Path) -> Iterator[Submitted]:
    job_dir = ("--job-dir", f"gs://{BUCKET}/by_flags")
    staging = ("--staging-bucket", f"gs://{BUCKET}")
    user = ("--", "--epochs", "3", "--name=two words", "--quote", 'a "b"')
    commands = {
        "by_flags": training(
            *("by_flags", "show", *job_dir, "--packages", PART), *("--scale-tier", "basic", *user)
        ),
        "custom": training(
            *("custom", "meet", "--config", "config.yaml", "--stream-logs"),
            *("--job-dir", f"gs://{BUCKET}/custom"),
        ),
        "fails": training("fails", "fail", *staging, "--stream-logs"),
        "waits": training(
            *("waits", "wait", *staging, "--scale-tier", "basic-gpu"),
            *("--labels", "team=red,kind=test"),
            *("--service-account", f"trainer@{PROJECT}.iam.gserviceaccount.com"),
        ),
    }
    with ThreadPoolExecutor(len(commands)) as pool:
        running = {
            name: pool.submit(
                # gcloud writes a setup.py into the tree while it packs it.
                gcloud.run,
                *command,
                cwd=Path(shutil.copytree(source, source.with_name(name))),
                fails=name == "fails",
                timeout=180,
            )
            for name, command in commands.items()
        }
        by = {name: future.result() for name, future in running.items()}
    yield Submitted(by, gcloud.service)


def described(gcloud: Gcloud, job_id: str) -> dict[str, Any]:
    answer = gcloud.run("ai-platform", "jobs", "describe", job_id, "--format", "json")
    return json.loads(answer.stdout)


def answered(submitted: Submitted, job_id: str) -> dict[str, Any]:
    """What gcloud describes jobs by."""
    return submitted.service.call("GET", f"/v1/projects/{PROJECT}/jobs/{job_id}")


def test_everything_by_flags(submitted: Submitted, gcloud: Gcloud) -> None:
    """The guide's first form (spec/submit#gcloud, spec/submit#defaults, spec/program)."""
    assert submitted.finish("by_flags")["state"] == "SUCCEEDED"
    lines = submitted.lines("by_flags")
    assert "PART 42" in lines, "packages are installed in order"
    user = ["--epochs", "3", "--name=two words", "--quote", 'a "b"']
    assert said(lines, "ARGV") == [*user, "--job-dir", f"gs://{BUCKET}/by_flags"]
    assert said(lines, "CLUSTER_SPEC") is None, (
        "spec/program#cluster_spec: only custom containers have one in ml v1"
    )
    config = said(lines, "TF_CONFIG")
    assert config["environment"] == "cloud"
    assert (config["task"]["type"], config["task"]["index"]) == ("chief", 0)
    assert list(config["cluster"]) == ["chief"]
    assert config["job"]["args"] == user
    first = submitted.lines("by_flags", "service")[0]
    assert first.startswith("runtimeVersion:2.11 is mapped by an operator's setting")

    job = described(gcloud, "by_flags")
    assert job["state"] == "SUCCEEDED"
    assert job["createTime"] <= job["startTime"] <= job["endTime"]
    assert job["trainingInput"]["args"] == user
    uris = job["trainingInput"]["packageUris"]
    assert [uri.startswith(f"gs://{BUCKET}/by_flags/packages/") for uri in uris] == [True, True]


def test_a_custom_cluster_of_13_replicas_succeeds_with_its_master(submitted: Submitted) -> None:
    """The guide's second form runs on this machine in relaxed mode (spec/lifecycle#end); the workers never
    end."""
    streamed = submitted.by["custom"]
    assert "state: SUCCEEDED" in streamed.stdout
    log = streamed.stderr.splitlines()
    mapped = next(line for line in log if "runtimeVersion:2.11 is mapped" in line)
    # A warning on machines that have no Python 3.11.
    assert mapped.startswith(("NOTICE", "WARNING")), "spec/submit#defaults"
    assert "\tservice\t" in mapped
    assert any("MET cmle-training-" in line for line in log)
    assert any(line.endswith("Job completed successfully.") for line in log), (
        "the last lines are missing in what submit --stream-logs showed:\n" + "\n".join(log)
    )

    met = next(line for line in submitted.lines("custom") if line.startswith("MET ")).split()[1:]
    assert len(met) == 12
    roles: list[tuple[str, int]] = []
    view = submitted.finish("custom")
    for replica in view["replicas"]:
        lines = submitted.lines("custom", replica["id"])
        config = said(lines, "TF_CONFIG")
        assert said(lines, "CLUSTER_SPEC") is None
        sizes = {role: len(hosts) for role, hosts in config["cluster"].items()}
        assert sizes == {"chief": 1, "worker": 9, "ps": 3}
        roles.append((config["task"]["type"], config["task"]["index"]))
    expected = [("chief", 0), *(("worker", n) for n in range(9)), *(("ps", n) for n in range(3))]
    assert sorted(roles) == sorted(expected)
    job = answered(submitted, "custom")
    assert job["trainingInput"]["workerCount"] == "9"


def test_a_program_that_fails(submitted: Submitted) -> None:
    """spec/failures#messages: the public message with the program's last lines; `submit --stream-logs` exits
    1."""
    streamed = submitted.by["fails"]
    assert streamed.returncode == 1
    assert "state: FAILED" in streamed.stdout
    assert "\tmaster-replica-0\t\tabout to fail" in streamed.stderr
    assert "Job failed." in streamed.stderr
    job = answered(submitted, "fails")
    first, _, rest = job["errorMessage"].partition("\n")
    assert first.strip() == (
        "The replica master 0 exited with a non-zero status of 7. Termination reason: Error."
    )
    assert rest.startswith("about to fail\nout of luck\n"), "the program's words, not the service's"
    assert "To find out more about why your job exited" in rest


def test_a_job_is_listed_relabelled_and_cancelled(submitted: Submitted, gcloud: Gcloud) -> None:
    next(line for line in submitted.service.follow(ref("waits")) if line == "WAITING")
    listed = gcloud.run(
        *("ai-platform", "jobs", "list", "--filter", "state=RUNNING AND jobId:wait*"),
        *("--format", "value(jobId)"),
    )
    assert listed.stdout.split() == ["waits"]
    gcloud.run(
        *("ai-platform", "jobs", "update", "waits"),
        *("--update-labels", "team=blue,more=yes", "--remove-labels", "kind"),
    )
    job = answered(submitted, "waits")
    assert job.get("labels") == {"team": "blue", "more": "yes"}
    assert job["state"] == "RUNNING"
    assert job["trainingInput"]["serviceAccount"] == f"trainer@{PROJECT}.iam.gserviceaccount.com"

    gcloud.run("ai-platform", "jobs", "cancel", "waits")
    view = submitted.finish("waits")
    assert view["state"] == "CANCELLED"
    job = answered(submitted, "waits")
    assert (job["state"], job["errorMessage"]) == (
        "CANCELLED",
        "The job was cancelled by the user.",
    )
    log = submitted.lines("waits", "service")
    assert any("NVIDIA_TESLA_K80" in line for line in log), (
        "spec/queue#capacity: a GPU spec runs with a notice"
    )
    submitted.service.call("POST", f"/v1/projects/{PROJECT}/jobs/waits:cancel", {}, expect=400)


def test_what_gcloud_shows_of_a_refusal(submitted: Submitted, gcloud: Gcloud, source: Path) -> None:
    """spec/submit#refusals: the reason in words and in fields; nothing is stored."""
    staging = ("--staging-bucket", f"gs://{BUCKET}")
    command = training("short", "show", *staging, "--config", "short.yaml")
    own = Path(shutil.copytree(source, source.with_name("refused")))
    assert "field: scheduling.max_wait_time" in gcloud.run(*command, fails=True, cwd=own).stderr
    submitted.service.call("GET", f"/v1/projects/{PROJECT}/jobs/short", expect=404)
