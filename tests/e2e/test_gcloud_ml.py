"""The real `gcloud ai-platform` with a real service: submissions by flags and by a file, of a program and of
a search, and all operations on jobs (spec/submit, spec/lifecycle, spec/program, spec/runtimes,
spec/tuning#parameters, spec/clients#recipes, spec/clients#surface).

The jobs are submitted once, in parallel, because gcloud polls for their end every ten seconds.
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
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, json_of
from tests.e2e.tuning_programs import TRIAL

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "gcloud-ml"
PART = "extra_part-0.1-py3-none-any.whl"

GUIDE = """
import json, os, signal, socket, sys, time
import extra_part
print("PART", extra_part.VALUE)
print("ARGV", json.dumps(sys.argv[1:]))
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

TUNE = (
    TRIAL
    + """
import json
print("trial", trial, "has", json.dumps(sys.argv[1:]), flush=True)
loss = {1: 1.0, 2: 0.0, 3: 2.0}[trial]
for step in range(1, int(given["epochs"]) + 1):
    report(loss + 10 / step, step, os.environ["CLOUD_ML_HP_METRIC_TAG"])
"""
)
"""The second of three trials is the best."""


def program(text: str, *arguments: str) -> dict[str, Any]:
    return {
        "imageUri": SKLEARN,
        "containerCommand": ["python3", "-c", text],
        "containerArgs": list(arguments),
    }


CUSTOM = """
trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerType: complex_model_m
  parameterServerType: large_model
  workerCount: 2
  parameterServerCount: 1
"""

SEARCH = {
    "trainingInput": {
        "scaleTier": "CUSTOM",
        "masterType": "standard",
        "masterConfig": program(TUNE, "--epochs", "4"),
        "hyperparameters": {
            "goal": "MINIMIZE",
            "hyperparameterMetricTag": "loss",
            "maxTrials": 3,
            "maxParallelTrials": 2,
            "params": [
                {
                    "parameterName": "rate",
                    "type": "DOUBLE",
                    "minValue": 0.0001,
                    "maxValue": 0.1,
                    "scaleType": "UNIT_LOG_SCALE",
                },
                {"parameterName": "units", "type": "DISCRETE", "discreteValues": [16, 32, 64]},
                {"parameterName": "optimizer", "type": "CATEGORICAL", "categoricalValues": ["sgd", "adam"]},
            ],
        },
    }
}
TOO_SHORT = """
trainingInput:
  scheduling:
    maxWaitTime: 1799s
"""

USER = ["--epochs", "3", "--name=two words", "--quote", 'a "b"']


@dataclass(frozen=True)
class Submitted:
    """The responses of `jobs submit training`, by job ID."""

    by: dict[str, CompletedProcess[str]]
    service: Service

    def finish(self, job_id: str) -> dict[str, Any]:
        return self.service.finish(ref(job_id))

    def lines(self, job_id: str, replica: str | None = None) -> list[str]:
        return self.service.lines(ref(job_id), replica)


def ref(job_id: str) -> str:
    return quote(f"projects/{PROJECT}/jobs/{job_id}", safe="")


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree as in the guide, and a package that it depends on."""
    root = tmp_path_factory.mktemp("source")
    package = root / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "guide.py").write_text(GUIDE)
    (root / "config.yaml").write_text(CUSTOM)
    # JSON is valid YAML.
    (root / "fail.yaml").write_text(json.dumps({"trainingInput": {"masterConfig": program(FAIL)}}))
    (root / "search.yaml").write_text(json.dumps(SEARCH))
    (root / "short.yaml").write_text(TOO_SHORT)
    (root / PART).write_bytes(wheel("extra_part", "VALUE = 42\n"))
    return root


def training(job_id: str, *more: str) -> tuple[str, ...]:
    return ("ai-platform", "jobs", "submit", "training", job_id, "--region", REGION, *more)


@pytest.fixture(scope="module")
def submitted_jobs(gcloud: Gcloud, source: Path) -> Iterator[Submitted]:
    commands = {
        "guide": training(
            *("guide", "--package-path", "trainer/", "--module-name", "trainer.guide"),
            *(*RUNTIME_VERSION, "--packages", PART, "--config", "config.yaml", "--stream-logs"),
            *("--job-dir", f"gs://{BUCKET}/guide", "--labels", "team=red,kind=test"),
            *("--service-account", f"trainer@{PROJECT}.iam.gserviceaccount.com", "--", *USER),
        ),
        "fails": training(*("fails", "--config", "fail.yaml", "--scale-tier", "basic-gpu", "--stream-logs")),
        "tuned": training(
            *("tuned", "--config", "search.yaml", "--stream-logs"), *("--job-dir", f"gs://{BUCKET}/tuned")
        ),
    }
    with ThreadPoolExecutor(len(commands)) as pool:
        running = {
            name: pool.submit(
                # gcloud writes a setup.py into the tree when it packs it.
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


def describe_job(service: Service, job_id: str) -> dict[str, Any]:
    """Return gcloud's description of jobs."""
    return service.call("GET", f"/v1/projects/{PROJECT}/jobs/{job_id}")


def test_job_on_a_custom_cluster_succeeds_when_its_master_succeeds(submitted_jobs: Submitted) -> None:
    """The guide's form runs on this machine with any requested resources (spec/submit#gcloud, spec/program,
    spec/lifecycle#end). The workers never end.
    """
    streamed = submitted_jobs.by["guide"]
    assert "state: SUCCEEDED" in streamed.stdout
    log = streamed.stderr.splitlines()
    mapped = next(line for line in log if "The operator maps runtimeVersion:2.11" in line)
    # A warning on machines without Python 3.11.
    assert mapped.startswith(("NOTICE", "WARNING")), "spec/submit#defaults"
    assert "\tservice\t" in mapped
    assert any("MET cmle-training-" in line for line in log)
    assert any(line.endswith("Job completed successfully.") for line in log), (
        "the last lines are missing in what submit --stream-logs showed:\n" + "\n".join(log)
    )

    met = next(line for line in submitted_jobs.lines("guide") if line.startswith("MET ")).split()[1:]
    assert len(met) == 3
    roles: list[tuple[str, int]] = []
    view = submitted_jobs.finish("guide")
    for replica in view["replicas"]:
        lines = submitted_jobs.lines("guide", replica["id"])
        assert "PART 42" in lines, "packages are installed in order"
        assert json_of(lines, "ARGV") == [*USER, "--job-dir", f"gs://{BUCKET}/guide"]
        # spec/program#cluster_spec: in ml v1 only custom containers have one.
        assert [line for line in lines if line.startswith("CLUSTER_SPEC ")] == ["CLUSTER_SPEC None"]
        config = json_of(lines, "TF_CONFIG")
        assert (config["environment"], config["job"]["args"]) == ("cloud", USER)
        sizes = {role: len(hosts) for role, hosts in config["cluster"].items()}
        assert sizes == {"chief": 1, "worker": 2, "ps": 1}
        roles.append((config["task"]["type"], config["task"]["index"]))
    assert sorted(roles) == [("chief", 0), ("ps", 0), ("worker", 0), ("worker", 1)]
    job = describe_job(submitted_jobs.service, "guide")
    assert job["createTime"] <= job["startTime"] <= job["endTime"]
    units = job["trainingOutput"]["consumedMLUnits"]
    assert units >= 0.18, "three complex_model_m and one large_model for ten node-minutes, at least"
    assert job["labels"] == {"team": "red", "kind": "test"}
    trained = job["trainingInput"]
    assert (trained["workerCount"], trained["args"]) == ("2", USER)
    assert trained["serviceAccount"] == f"trainer@{PROJECT}.iam.gserviceaccount.com"
    place = f"gs://{BUCKET}/guide/packages/"
    assert [uri.startswith(place) for uri in trained["packageUris"]] == [True, True]


def test_error_of_a_failed_job_contains_the_last_output_lines_of_its_program(
    submitted_jobs: Submitted,
) -> None:
    """spec/failures#messages: the public message with the program's last lines; `submit --stream-logs` exits
    with 1.
    """
    streamed = submitted_jobs.by["fails"]
    assert streamed.returncode == 1
    assert "state: FAILED" in streamed.stdout
    assert "\tmaster-replica-0\t\tabout to fail" in streamed.stderr
    assert "Job failed." in streamed.stderr
    job = describe_job(submitted_jobs.service, "fails")
    first, _, rest = job["errorMessage"].partition("\n")
    assert first.strip() == (
        "The replica master 0 exited with a non-zero status of 7. Termination reason: Error."
    )
    assert rest.startswith("about to fail\nout of luck\n"), "the program's words, not the service's"
    assert "To find out more about why your job exited" in rest
    log = submitted_jobs.lines("fails", "service")
    assert any("NVIDIA_TESLA_K80" in line for line in log), (
        "spec/queue#capacity: a GPU spec runs with a notice"
    )


def test_tuning_job_shows_the_best_trial_first(submitted_jobs: Submitted, gcloud: Gcloud) -> None:
    """facts/resources#ml, facts/program#arguments: trials best first, `--name value`, a job directory for
    each.
    """
    # Severity, time, task, trial, message.
    log = submitted_jobs.by["tuned"].stderr.splitlines()
    rows = [line.split("\t") for line in log if "\ttrial " in line]
    assert {fields[2] for fields in rows} == {"master-replica-0"}
    assert sorted(int(fields[3]) for fields in rows) == [1, 2, 3]
    assert all(fields[4].startswith(f"trial {fields[3]} has ") for fields in rows)

    described = gcloud.run("ai-platform", "jobs", "describe", "tuned", "--format=json").stdout
    output = json.loads(described)["trainingOutput"]
    assert output["isHyperparameterTuningJob"] is True
    assert (output["completedTrialCount"], output["hyperparameterMetricTag"]) == ("3", "loss")
    trials = output["trials"]
    assert [int(trial["trialId"]) for trial in trials] == [2, 1, 3]
    assert trials[0]["finalMetric"] == {"trainingStep": "4", "objectiveValue": 2.5}
    assert {trial["state"] for trial in trials} == {"SUCCEEDED"}
    for trial in trials:
        parameters, id_ = trial["hyperparameters"], trial["trialId"]
        words = [word for name, value in parameters.items() for word in (f"--{name}", value)]
        assert set(parameters) == {"rate", "units", "optimizer"}
        assert parameters["units"] in ("16", "32", "64")
        argv = json_of(submitted_jobs.lines(f"tuned.{id_}"), f"trial {id_} has")
        assert argv[:2] == ["--epochs", "4"]
        assert argv[-2:] == ["--job-dir", f"gs://{BUCKET}/tuned/{id_}"]
        assert sorted(argv[2:-2]) == sorted(words)


def test_gcloud_lists_relabels_and_cancels_a_job(gcloud: Gcloud) -> None:
    service = gcloud.service
    job = {
        "jobId": "waits",
        "labels": {"team": "red", "kind": "test"},
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "standard",
            "masterConfig": program(WAIT),
            "region": REGION,
        },
    }
    service.call("POST", f"/v1/projects/{PROJECT}/jobs", job)
    next(line for line in service.follow(ref("waits")) if line == "WAITING")
    next(view for view in service.watch(ref("waits")) if view["state"] == "RUNNING")
    listed = gcloud.run(
        *("ai-platform", "jobs", "list", "--filter", "state=RUNNING AND jobId:wait*"),
        *("--format", "value(jobId)"),
    )
    assert listed.stdout.split() == ["waits"]
    gcloud.run(
        *("ai-platform", "jobs", "update", "waits"),
        *("--update-labels", "team=blue,more=yes", "--remove-labels", "kind"),
    )
    job = describe_job(service, "waits")
    assert job.get("labels") == {"team": "blue", "more": "yes"}
    assert job["state"] == "RUNNING"

    gcloud.run("ai-platform", "jobs", "cancel", "waits")
    assert service.finish(ref("waits"))["state"] == "CANCELLED"
    job = describe_job(service, "waits")
    assert (job["state"], job["errorMessage"]) == ("CANCELLED", "The job was cancelled by the user.")
    service.call("POST", f"/v1/projects/{PROJECT}/jobs/waits:cancel", {}, expect=400)


def test_gcloud_shows_reason_and_fields_of_an_error(gcloud: Gcloud, source: Path) -> None:
    """spec/submit#refusals: the reason in words and in fields. Nothing is stored."""
    command = training("short", "--config", "short.yaml", "--master-image-uri", SKLEARN)
    refused = gcloud.run(*command, fails=True, cwd=source)
    assert "field: scheduling.max_wait_time" in refused.stderr
    gcloud.service.call("GET", f"/v1/projects/{PROJECT}/jobs/short", expect=404)
