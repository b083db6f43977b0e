"""Tests of the arguments and variables of a container's program (spec/program, facts/program#arguments), of
root directories (docs/adr/0019), and of image references (spec/runtimes#images)."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.specs_requests import (
    NO_PACKAGE,
    container,
    custom_job,
    launch_plan,
    ml,
    package,
    placed_job,
    vertex,
)
from trainshed.core.catalog.images import is_reference
from trainshed.core.job import JobSpec
from trainshed.core.launch import ImageRoot, LaunchPlan
from trainshed.core.runtime import Image
from trainshed.runtimes.images.references import is_pinned, tag_of
from trainshed.runtimes.port import PackageFailed, PreparedRuntime
from trainshed_cluster.remote.agent import with_own_image

IMAGE = Image(
    root="/cache/images/abc/root",
    digest="abc",
    entrypoint=("python", "train.py"),
    command=("--epochs", "$(EPOCHS)"),
    environ=(("PATH", "/opt/bin:/bin"), ("EPOCHS", "3"), ("CLOUD_ML_REGION", "moon")),
    workdir="/app",
    user="ada",
)
CMD_ONLY = replace(IMAGE, entrypoint=(), command=("python", "train.py"))
NOTHING = replace(IMAGE, entrypoint=(), command=())
UNREAD = Image(None, "", unread="registry.example does not answer (timed out)")


def plan(spec: JobSpec, image: Image = IMAGE) -> LaunchPlan:
    return launch_plan(placed_job(spec), PreparedRuntime("", image=image))


@pytest.mark.parametrize(
    ("fields", "argv"),
    [
        ({}, ("python", "train.py", "--epochs", "$(EPOCHS)")),
        ({"args": ["--lr", "1"]}, ("python", "train.py", "--lr", "1")),
        ({"command": ["sh"]}, ("sh",)),
        ({"command": ["sh", "-c"], "args": ["x"]}, ("sh", "-c", "x")),
        (
            {"args": ["$(EPOCHS)", "$(NONE)", "$$(EPOCHS)"]},
            ("python", "train.py", "3", "$(NONE)", "$(EPOCHS)"),
        ),
    ],
    ids=["neither", "args", "command", "both", "expanded"],
)
def test_command_of_a_job_replaces_the_image_entrypoint_and_args_replace_the_image_cmd(
    fields: Mapping[str, object], argv: tuple[str, ...]
) -> None:
    """As in the public service, command replaces ENTRYPOINT and drops CMD; args replace CMD. The image's
    values are not changed (facts/program#arguments)."""
    assert plan(vertex(custom_job(container(**fields)))).argv == argv


def test_job_variables_override_service_variables_which_override_image_variables() -> None:
    """spec/program#arguments: `$(VAR)` refers to all variables that are set before
    (facts/program#variables)."""
    env = [
        {"name": "SHOWN", "value": "$(EPOCHS) in $(CLOUD_ML_REGION)"},
        {"name": "PATH", "value": "/mine:$(PATH)"},
    ]
    environ = dict(plan(vertex(custom_job(container(env=env)))).environ)
    assert (environ["EPOCHS"], environ["CLOUD_ML_REGION"]) == ("3", "us-central1")
    assert environ["SHOWN"] == "3 in us-central1"
    assert environ["PATH"] == "/mine:/opt/bin:/bin"


def test_job_dir_argument_is_appended_to_the_command_of_the_image() -> None:
    """spec/submit#ml-jobs: `--job-dir PATH` are the last two arguments. `$(VAR)` is plain text in an `ml` job
    (spec/program#arguments)."""
    spec = ml(**NO_PACKAGE, masterConfig={"imageUri": "gcr.io/p/i:1"}, jobDir="gs://bucket/job")
    program = ("python", "train.py", "--epochs", "$(EPOCHS)")
    assert plan(spec).argv == (*program, "--job-dir", "gs://bucket/job")


@pytest.mark.parametrize("image", [IMAGE, CMD_ONLY], ids=["entry point", "command"])
def test_trial_parameters_do_not_replace_the_program_in_the_cmd_of_an_image(image: Image) -> None:
    """spec/program#arguments: Hyperparameters are passed as `--name value`. They replace an image's
    arguments, never its program."""
    spec = vertex(custom_job(container(args=["--lr", "0.1"])))
    assert plan(replace(spec, trial="1"), image).argv == ("python", "train.py", "--lr", "0.1")


def test_image_without_a_program_is_rejected_with_a_remedy() -> None:
    """spec/failures: The error contains the field to set."""
    with pytest.raises(PackageFailed, match=r"neither ENTRYPOINT nor CMD.*Set the command"):
        plan(vertex(custom_job(container())), NOTHING)


def test_python_of_an_image_installs_the_packages_and_then_runs_the_module() -> None:
    """spec/program#arguments: Packages are installed in order, then `python3 -m MODULE` runs."""
    uris = ["gs://bucket/one.tar.gz", "gs://bucket/two.whl"]
    argv = plan(vertex(custom_job(package(packageUris=uris, args=["--x", "1"])))).argv
    assert argv[:2] == ("python3", "-c")
    compile(argv[2], "executor", "exec")
    assert argv[3:] == (uris[0], "", uris[1], "", "--", "python3", "-m", "trainer.task", "--x", "1")


def test_command_of_a_job_runs_although_the_image_metadata_is_unavailable() -> None:
    """This applies to engines whose cluster pulls images (docs/kubernetes.md)."""
    body = container(command=["/bin/train"], args=["--fast"])
    launch = plan(vertex(custom_job(body)), UNREAD)
    assert launch.argv == ("/bin/train", "--fast")
    assert launch.software.image == ImageRoot(None)
    with pytest.raises(PackageFailed, match=r"registry\.example does not answer .* Set the command"):
        plan(vertex(custom_job(container(args=["--fast"]))), UNREAD)


def test_program_inherits_environment_variables_of_the_image_of_the_agent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Variables that the cluster sets for its own clients are removed. Variables of the launch plan take
    precedence."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("KUBERNETES_SERVICE_HOST", "10.0.0.1"), ("GREETING", "hello")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("EPOCHS", "of the image")
    bare = plan(vertex(custom_job(container())), replace(IMAGE, root=None, workdir=None))
    launch = with_own_image(bare)
    environ = dict(launch.environ)
    assert (environ["GREETING"], environ["EPOCHS"]) == ("hello", "3")
    assert not any(name.startswith("KUBERNETES_") for name in environ)
    assert launch.software.image == ImageRoot(None, str(tmp_path), "ada")
    unpacked = plan(vertex(custom_job(container())))
    assert with_own_image(unpacked) == unpacked


DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("reference", "tag"),
    [
        ("trainer", "latest"),
        ("trainer:2", "2"),
        ("host:5000/team/trainer", "latest"),
        ("host:5000/team/trainer:V1.0_x", "V1.0_x"),
        (f"gcr.io/p/trainer@{DIGEST}", ""),
        (f"gcr.io/p/trainer:1@{DIGEST}", ""),
    ],
)
def test_tag_of_an_image_reference_is_distinguished_from_port_and_digest(reference: str, tag: str) -> None:
    """spec/runtimes#builds: the image of a digest never changes, but the image of a tag may change."""
    assert tag_of(reference) == tag
    assert is_pinned(reference) == (not tag)
    assert is_reference(reference)


@pytest.mark.parametrize(
    "reference",
    [
        "gcr.io/Project/trainer",
        "Project/trainer",
        "gcr.io/p//trainer",
        "gs://b/trainer",
        "-x",
        "",
        *("trainer:a b", "trainer:", "trainer@sha256:abc", "ho_st.io:x/trainer"),
    ],
)
def test_invalid_image_reference_is_rejected(reference: str) -> None:
    """spec/submit#refusals: An invalid request is rejected at once."""
    assert not is_reference(reference)
