"""`trainshed run`: packaging, requests, and messages before the submit."""

import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import click
import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import TOKEN, FakeService, job
from trainshed.cli.client import RequestError
from trainshed.cli.connection import Endpoint
from trainshed.cli.run import sending
from trainshed.cli.run.program import pack
from trainshed.cli.run.request import image_uri
from trainshed.cli.run.source_files import PackagingError

CREATE = "/v1/projects/p/locations/us-central1/customJobs"
EXPLAIN = "/trainshed/v1/jobs:explain"
NAME = "projects/p/locations/us-central1/customJobs/7"
PLAN: dict[str, Any] = {
    "project": "p",
    "location": "us-central1",
    "admitted": True,
    "notices": ["Runs on Python 3.10."],
}


@pytest.fixture
def ready(service: FakeService) -> FakeService:
    service.on("POST", EXPLAIN, PLAN)
    # No machine type has a single H200.
    service.on("GET", "/trainshed/v1/status", {"accelerators": ["NVIDIA_H200_141GB", "NVIDIA_L4"]})
    service.on("POST", "/upload/storage/v1/b/b/o", {})
    service.on("POST", CREATE, {"name": NAME})
    service.on("GET", f"/trainshed/v1/jobs/{NAME}", job("7"))
    return service


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of several files, in a directory with unrelated files."""
    directory = tmp_path / "program"
    (directory / "lib").mkdir(parents=True)
    (directory / "my-task.py").write_text("import sys, model\nprint(model.who, sys.argv[1:])\n")
    (directory / "model.py").write_text("from lib.names import who\n")
    (directory / "lib/names.py").write_text("who = open('lib/who.txt').read()\n")
    (directory / "lib/who.txt").write_text("me")
    (directory / "other.py").write_text("raise SystemExit('nobody asked for it')\n")
    return directory


def last_created_job(service: FakeService) -> dict[str, Any]:
    return json.loads(service.bodies("POST", CREATE)[-1])


def test_run_command_uses_a_bucket_that_a_parallel_command_has_just_created(service: FakeService) -> None:
    endpoint = Endpoint(service.address, TOKEN, bucket="b")
    place = {"project": "p", "region": "us-central1"}
    service.refuse("POST", "/storage/v1/b", 409, "You already own it.")
    sending.require_bucket(endpoint, place)
    service.refuse("POST", "/storage/v1/b", 403, "No.")
    with pytest.raises(RequestError, match="No"):
        sending.require_bucket(endpoint, place)


def test_run_of_a_file_creates_a_job(trainshed: Invoke, ready: FakeService, program: Path) -> None:
    result = trainshed(
        *("run", str(program / "my-task.py"), "--image", "pytorch", "--replicas", "3"),
        *("--env", "A=1", "--secret", "B=key", "--label", "team=x", "--timeout", "2h"),
        *("--requirements", "pandas>=2,<3", "--gpus", "1", "--", "--epochs", "3"),
    )
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{NAME}\n"
    body = last_created_job(ready)
    assert (body["displayName"], body["labels"]) == ("my-task", {"team": "x"})
    first, others = body["jobSpec"]["workerPoolSpecs"]
    assert (first["replicaCount"], others["replicaCount"]) == ("1", "2")
    assert first["machineSpec"] == {
        "machineType": "g2-standard-4",
        "acceleratorType": "NVIDIA_L4",
        "acceleratorCount": 1,
    }
    package = first["pythonPackageSpec"]
    assert package["executorImageUri"].startswith("us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.")
    assert package["pythonModule"] == "trainshed_program.my_task"
    assert package["args"] == ["--epochs", "3"]
    assert package["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "$(secret:key)"}]
    assert body["jobSpec"]["scheduling"] == {"timeout": "7200s"}
    (uri,) = package["packageUris"]
    (upload,) = [request for request in ready.sent if request.path.startswith("/upload")]
    assert uri == f"gs://b/{upload.query['name']}"
    with zipfile.ZipFile(io.BytesIO(upload.body)) as wheel:
        files = {name.partition("/files/")[2] for name in wheel.namelist() if "/files/" in name}
        (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
        assert "Requires-Dist: pandas>=2,<3\n" in wheel.read(metadata).decode()
    assert files == {"my-task.py", "model.py", "lib/names.py", "lib/who.txt"}
    text = result.stderr
    assert "my-task.py on pytorch-gpu" in text
    assert "Would start now" in text
    assert "notice: Runs on Python 3.10." in text


def test_run_command_stores_notebook_and_ports_in_a_job_label(trainshed: Invoke, ready: FakeService) -> None:
    result = trainshed("run", "--notebook", "--port", "board=6006", "--image", "pytorch")
    assert result.exit_code == 0, result.stderr
    body = last_created_job(ready)
    assert body["displayName"] == "notebook"
    assert body["labels"] == {"trainshed-ports": "notebook_board-6006"}
    (pool,) = body["jobSpec"]["workerPoolSpecs"]
    assert pool["pythonPackageSpec"]["pythonModule"] == "trainshed_program.notebook"
    assert "Installs  jupyterlab==" in result.stderr
    for words, text in (
        (("--notebook", "task.py"), "Omit PATH"),
        (("--image", "a/b", "--port", "Board=6006"), "write NAME=PORT"),
        (("--image", "a/b", "--port", "board=70000"), "from 1 to 65535"),
    ):
        assert text in trainshed("run", *words).stderr


@pytest.mark.parametrize(("path", "entry"), [("my-task.py", ""), ("", "my-task.py")])
def test_packed_program_finds_its_files_and_arguments(
    program: Path, tmp_path: Path, path: str, entry: str
) -> None:
    """The program runs like in a replica: installed, in an empty working directory. A second start
    keeps the files that the program has changed there."""
    (program / 'lib/a, "b"').touch()
    packed = pack(program / path, entry, ())
    installed, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    with zipfile.ZipFile(io.BytesIO(packed.packages[0].content)) as wheel:
        wheel.extractall(installed)
        record = wheel.read("trainshed_program-1.0.dist-info/RECORD").decode()
        assert [name for name, *_ in csv.reader(io.StringIO(record))] == wheel.namelist()

    def run() -> str:
        return subprocess.run(
            [sys.executable, "-m", packed.module, "--epochs", "3"],
            cwd=work,
            env={"PYTHONPATH": str(installed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert run() == "me ['--epochs', '3']\n"
    (work / "lib/who.txt").write_text("another")
    assert run() == "another ['--epochs', '3']\n"


def test_entry_module_of_a_package_is_found(tmp_path: Path) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "task.py").write_text("from trainer import data\n")
    (package / "data.py").touch()
    for path in (package, tmp_path, package / "task.py"):
        assert pack(path, "", ()).entry == "trainer.task"
    (package / "task.py").rename(package / "learn.py")
    with pytest.raises(PackagingError, match=r"--module trainer\.task"):
        pack(package, "", ())
    assert pack(package, "trainer.learn", ()).entry == "trainer.learn"
    assert pack(package, "learn.py", ()).files == ("__init__.py", "data.py", "learn.py")


def test_shell_script_is_packed_together_with_the_files_that_the_script_calls(tmp_path: Path) -> None:
    """Files called directly or through other files are packed with the modules that they import.
    Hidden files and files outside the directory are not."""
    tree = tmp_path / "tree"
    sources = {
        "run.sh": "set -e\n. ./env.sh && python3 lib/train.py --in data.csv 'x' | tee log.txt\n"
        "python3 -m tool.main\ncat .secret ../key link.txt run.sh /etc/hostname big.bin\n",
        "env.sh": "python3 check.py\n",
        "check.py": "import shared\n",
        "shared.py": "",
        "lib/train.py": "import model\n",
        "lib/model.py": "",
        "tool/__init__.py": "",
        "tool/main.py": "",
        "data.csv": "",
        "unused.py": "",
        ".secret": "",
        "../key": "",
    }
    for name, text in sources.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "link.txt").symlink_to(tmp_path / "key")
    with (tree / "big.bin").open("wb") as data:
        data.truncate(11 * 2**20)
    called = {"run.sh", "env.sh", "check.py", "shared.py", "data.csv"}
    called |= {"lib/train.py", "lib/model.py", "tool/__init__.py", "tool/main.py"}
    assert set(pack(tree / "run.sh", "", ()).files) == called


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("sklearn-cpu.1-6:slim", "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:slim?"),
        ("tf-cpu.2-11", "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11?"),
    ],
)
def test_misspelled_prebuilt_image_gets_a_suggestion(image: str, text: str) -> None:
    with pytest.raises(click.UsageError) as refusal:
        image_uri(image, gpus=False)
    assert f"Did you mean --image {text}" in refusal.value.message
    assert image_uri("python:3.11", gpus=False) == "python:3.11"


def test_program_with_syntax_error_is_not_submitted(
    trainshed: Invoke, ready: FakeService, tmp_path: Path
) -> None:
    script = tmp_path / "task.py"
    script.write_text("import os\nprint('a'\n")
    result = trainshed("run", str(script))
    assert result.exit_code == 1
    assert f"{script}, line 2: '(' was never closed." in result.stderr
    assert not ready.sent


def test_oversized_program_directory_is_rejected_unread(tmp_path: Path) -> None:
    (tmp_path / "task.py").touch()
    with (tmp_path / "data.bin").open("wb") as data:
        data.truncate(2**40)
    with pytest.raises(PackagingError, match=r"limit of 200 MiB.* The largest files: data\.bin, task\.py"):
        pack(tmp_path, "", ())
    (tmp_path / "data.bin").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PackagingError, match="pipe is not an ordinary file"):
        pack(tmp_path, "", ())
    for name in ("caf\udce9", "a\nb"):
        (tmp_path / name).touch()
        with pytest.raises(PackagingError, match="contains control characters or is not UTF-8"):
            pack(tmp_path, "", ())
        (tmp_path / name).unlink()
    (tmp_path / "note.ipynb").touch()
    with pytest.raises(PackagingError, match="jupyter nbconvert --to script"):
        pack(tmp_path / "note.ipynb", "", ())


def test_symlink_cannot_add_excluded_files_to_the_package(tmp_path: Path) -> None:
    tree, key = tmp_path / "tree", tmp_path / "keys" / "key.py"
    for file in (tree / "task.py", tree / ".env", key):
        file.parent.mkdir(exist_ok=True)
        file.write_text("import util\n")
    (tree / "same.py").symlink_to("task.py")
    assert pack(tree, "task.py", ()).files == ("same.py", "task.py")
    for name, target in (("util.py", key), ("util.py", ".env"), ("util", key.parent)):
        (tree / name).symlink_to(target)
        for path in (tree, tree / "task.py"):
            with pytest.raises(PackagingError, match=rf"{name}.* is a link to "):
                pack(path, "", ())
        (tree / name).unlink()
    listed, token = tree / "requirements.txt", key.with_name("token")
    token.write_text("a-token-in-the-form-of-a-name")
    for wanted in (f"-r {token}", "-r ../keys/token", ""):
        if wanted:
            listed.write_text(wanted)
        else:
            listed.unlink()
            listed.symlink_to(token)
        with pytest.raises(PackagingError, match="is outside of "):
            pack(tree, "task.py", ())


def test_run_explains_a_job_that_fits_no_node(trainshed: Invoke, ready: FakeService, program: Path) -> None:
    waiting = {"reason": "stock_out", "message": "needs 4 CPUs on one node; the largest has 1"}
    ready.on("POST", EXPLAIN, {**PLAN, "admitted": False, "waiting": waiting})
    text = " ".join(trainshed("run", str(program / "other.py")).stderr.split())
    assert "Does not fit any node p, us-central1 needs 4 CPUs on one node; the largest has 1" in text
    assert "trainshed up --node-cpus" in text


def test_run_after_other_jobs_sets_a_label_with_their_uids(
    trainshed: Invoke, ready: FakeService, program: Path, tmp_path: Path
) -> None:
    ready.on("GET", "/trainshed/v1/jobs/8", job("8"))
    ready.on("GET", "/trainshed/v1/jobs/9", job("9"))
    waiting = {"reason": "job", "message": "waits until job 8 has succeeded", "blockers": [NAME]}
    ready.on("POST", EXPLAIN, {**PLAN, "admitted": False, "waiting": waiting})
    options = ("--after", "8", "--after", "9:finished", "--label", "team=x")
    result = trainshed("run", str(program / "other.py"), *options)
    assert result.exit_code == 0, result.stderr
    assert "waits until job 8 has succeeded (job)" in result.stderr
    assert "held by" not in result.stderr
    labels = {"team": "x", "trainshed-after": "8__9_finished"}
    assert last_created_job(ready)["labels"] == labels
    file = tmp_path / "job.json"
    file.write_text(json.dumps(last_created_job(ready) | {"labels": {}}))
    assert trainshed("run", "-f", str(file), *options).exit_code == 0
    assert last_created_job(ready)["labels"] == labels


def test_run_command_uploads_nothing_if_the_service_rejects_the_job(
    trainshed: Invoke, ready: FakeService, program: Path
) -> None:
    ready.refuse("POST", EXPLAIN, 400, "no", **{"job_spec.machine": "There is no such machine."})
    result = trainshed("run", str(program / "other.py"))
    assert result.exit_code == 1
    assert "There is no such machine." in result.stderr
    assert not [request for request in ready.sent if request.path.startswith("/upload")]


def test_run_with_tune_creates_a_tuning_job(trainshed: Invoke, ready: FakeService, program: Path) -> None:
    searches = CREATE.replace("customJobs", "hyperparameterTuningJobs")
    ready.on("POST", searches, {"name": NAME})
    tuned = ("lr=1e-4..1e-1:log", "layers=1..8", "batch=32,16", "opt=adam,sgd")
    words = [word for text in tuned for word in ("--tune", text)]
    result = trainshed("run", str(program / "other.py"), *words, "--maximize", "val_acc", "--trials", "3")
    assert result.exit_code == 0, result.stderr
    (body,) = map(json.loads, ready.bodies("POST", searches))
    assert body["studySpec"] == {
        "metrics": [{"metricId": "val_acc", "goal": "MAXIMIZE"}],
        "parameters": [
            {
                "parameterId": "lr",
                "doubleValueSpec": {"minValue": 0.0001, "maxValue": 0.1},
                "scaleType": "UNIT_LOG_SCALE",
            },
            {
                "parameterId": "layers",
                "integerValueSpec": {"minValue": "1", "maxValue": "8"},
                "scaleType": "UNIT_LINEAR_SCALE",
            },
            {"parameterId": "batch", "discreteValueSpec": {"values": [16, 32]}},
            {"parameterId": "opt", "categoricalValueSpec": {"values": ["adam", "sgd"]}},
        ],
    }
    assert (body["maxTrialCount"], body["parallelTrialCount"]) == (3, 3)
    assert body["trialJobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["pythonModule"]


@pytest.mark.parametrize("form", ["gcloud", "python", "json"])
def test_run_with_as_option_prints_the_job_for_another_client_without_submitting(
    trainshed: Invoke, ready: FakeService, program: Path, form: str
) -> None:
    result = trainshed("run", str(program / "other.py"), "--as", form)
    assert result.exit_code == 0, result.stderr
    assert "trainshed_program.other" in result.stdout
    assert not ready.bodies("POST", CREATE)
    assert ready.bodies("POST", "/upload/storage/v1/b/b/o"), "the printed job's package is uploaded"


def test_job_files_of_both_apis_are_submitted(trainshed: Invoke, ready: FakeService, tmp_path: Path) -> None:
    pools = [{"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 2}]
    file = tmp_path / "train.yaml"
    file.write_text(json.dumps({"workerPoolSpecs": pools}))
    result = trainshed("run", "-f", str(file), "--label", "a=b")
    assert result.exit_code == 0, result.stderr
    assert last_created_job(ready) == {
        "displayName": "train",
        "jobSpec": {"workerPoolSpecs": pools},
        "labels": {"a": "b"},
    }
    ready.on("POST", "/v1/projects/p/jobs", {"jobId": "mine"})
    ready.on("GET", "/trainshed/v1/jobs/projects/p/jobs/mine", job("8"))
    file.write_text(json.dumps({"trainingInput": {"scaleTier": "BASIC"}}))
    assert trainshed("run", "-f", str(file), "--name", "mine").exit_code == 0
    assert json.loads(ready.bodies("POST", "/v1/projects/p/jobs")[-1]) == {
        "jobId": "mine",
        "trainingInput": {"scaleTier": "BASIC", "region": "us-central1"},
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "The program is missing."),
        (("x.py", "--epochs", "3"), "put it after --: trainshed run task.py"),
        (("x.py",), "The file or directory x.py does not exist on this machine."),
        (("PROGRAM/other.py", "--image", "pytoch"), "Did you mean pytorch?"),
        (("PROGRAM/other.py", "--image", "pytorch:9"), "pytorch 9 exists; available versions: 2.4, 2.3"),
        (("PROGRAM/other.py", "--cpus", "5"), "sets CPUs: --machine-type n1-standard-8."),
        (("PROGRAM/other.py", "--memory=64G"), "sets memory: --machine-type n1-highmem-16."),
        (("PROGRAM/other.py", "--gpus", "3"), "can have 1, 2, 4, 8, 16 GPUs"),
        (("PROGRAM/other.py", "--env", "A"), "'A' has no value. Write NAME=VALUE."),
        (("PROGRAM/other.py", "--requirements", "-e ."), "options of pip are not supported"),
        (("PROGRAM",), "--module FILE.py"),
        (("PROGRAM/other.py", "--trials", "9"), "--trials need a parameter to tune"),
        (("PROGRAM/other.py", "--tune", "lr=1..2"), "Add --minimize loss or --maximize accuracy"),
        (
            (
                *("PROGRAM/other.py", "--minimize", "loss", "--tune", "a=9..1"),
                *("--tune", "b=0..1:log", "--tune", "c"),
            ),
            "--tune a=9..1: the lower bound 9 is not below the upper bound 1; "
            "b=0..1:log: a range on a log scale must start above 0; "
            "c: the parameter does not have the form NAME=VALUES.",
        ),
        (
            ("-f", "PROGRAM/other.py", "--gpus", "1", "--", "x"),
            "--gpus, arguments after -- cannot be combined with a job file",
        ),
        (("x.py", "--local", "--detach", "--as=json"), "--local excludes --detach, --as"),
    ],
)
def test_invalid_arguments_are_reported_before_any_request(
    trainshed: Invoke, ready: FakeService, program: Path, words: tuple[str, ...], text: str
) -> None:
    value = [word.replace("PROGRAM", str(program)) for word in words]
    result = trainshed("run", *value)
    assert result.exit_code in (1, 2)
    assert text in " ".join(result.stderr.split())
    assert {request.method for request in ready.sent} <= {"GET"}
