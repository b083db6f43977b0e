"""What a job's error says of a module that was not there, for each way of submitting."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import RUNTIME, Life, job
from trainshed.core.failure.missing_modules import advice, distribution, missing_module
from trainshed.core.job.spec import JobSpec, Program
from trainshed.core.names import Api
from trainshed.core.runtime import CONTAINER

TRACEBACK = """Traceback (most recent call last):
  File "task.py", line 1, in <module>
    import {module}
ModuleNotFoundError: No module named '{module}'
"""
SKLEARN = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest"
PACKAGE = Program(RUNTIME, module="trainer.task", package_uris=("gs://b/trainer.tar.gz",))
SCRIPT = replace(PACKAGE, module="aiplatform_custom_trainer_script.task", image_uri=SKLEARN)
COMMAND = Program(RUNTIME, image_uri=SKLEARN, command=("python3", "-c", "import seaborn"))
OWN_IMAGE = Program(replace(RUNTIME, family=CONTAINER), image_uri="localhost/mine:1")


def spec(program: Program, api: Api = Api.VERTEX) -> JobSpec:
    made = job(api=api).spec
    return replace(made, pools=(replace(made.pools[0], program=program),))


@pytest.mark.parametrize(
    ("tail", "module"),
    [
        (TRACEBACK.format(module="pandas"), "pandas"),
        ("ImportError: No module named cv2\n", "cv2"),
        ("/slot/python/bin/python3: No module named trainer.task\n", "trainer.task"),
        (
            "python3: Error while finding module specification for 'trainer.task' "
            "(ModuleNotFoundError: No module named 'trainer')",
            "trainer",
        ),
        (TRACEBACK.format(module="apex") + TRACEBACK.format(module="wandb"), "wandb"),
        ('{"severity":"ERROR","message":"ModuleNotFoundError: No module named \'dill\'"}', "dill"),
        ("ValueError: No module was given", ""),
        ("KeyError: 'pandas'", ""),
        ("", ""),
    ],
)
def test_the_module_is_read_from_the_last_lines(tail: str, module: str) -> None:
    assert missing_module(tail) == module


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("sklearn.svm", "scikit-learn"),
        ("PIL", "Pillow"),
        ("google.cloud.bigquery.dbapi", "google-cloud-bigquery"),
        ("google.cloud.secret_manager", "google-cloud-secret-manager"),
        ("google.protobuf", "protobuf"),
        ("pandas_gbq", "pandas-gbq"),
        ("tensorflow_hub", "tensorflow-hub"),
        ("seaborn", "seaborn"),
        ("mymodel", ""),
    ],
)
def test_distributions_by_their_modules(module: str, name: str) -> None:
    assert distribution(module) == name


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (PACKAGE, 'add "seaborn" to install_requires in the setup.py'),
        (SCRIPT, 'give requirements=["seaborn"] beside script_path'),
        (COMMAND, "sh -c 'pip install seaborn && exec python3"),
        (OWN_IMAGE, '"RUN pip install seaborn" to the Dockerfile'),
    ],
)
def test_where_to_name_it_depends_on_the_way_in(program: Program, words: str) -> None:
    told = advice("seaborn", spec(program), 0)
    assert told.startswith("seaborn is in the distribution seaborn, which")
    assert words in told


def test_a_script_that_the_sdk_runs_in_an_image_of_ones_own() -> None:
    command = (
        "sh",
        "-c",
        "pip3 install /gcs/b/x.tar.gz && python3 -m aiplatform_custom_trainer_script.task",
    )
    program = replace(OWN_IMAGE, command=command)
    assert 'requirements=["seaborn"]' in advice("seaborn", spec(program), 0)


def test_a_module_of_the_jobs_own_package() -> None:
    assert "find_packages()" in advice("trainer.model", spec(PACKAGE), 0)


def test_a_neighbour_that_python_2_would_have_found() -> None:
    """Before the index is spoken of, where somebody else's package may have that name."""
    told = advice("model", spec(PACKAGE), 0)
    assert told.startswith(
        "If model is a file of your own in trainer/, import it by its package: `from trainer import model`."
    )


@pytest.mark.parametrize(
    "program",
    [SCRIPT, replace(COMMAND, command=("sh", "-c", f"python3 -m {SCRIPT.module}"))],
)
def test_a_script_of_the_sdk_has_no_neighbours(program: Program) -> None:
    told = advice("utils", spec(program), 0)
    assert "script_path takes that one file alone" in told
    assert "setup.py" not in told


def test_an_unknown_module_may_be_either() -> None:
    told = advice("mymodel.layers", spec(COMMAND), 0)
    assert "If mymodel is a module of your own" in told
    assert "pip install mymodel" in told


@pytest.mark.parametrize("asked", ["", "1.12"])
def test_tensorflow_comes_with_a_runtime_version(asked: str) -> None:
    told = advice("tensorflow", replace(spec(PACKAGE, Api.ML), runtime_version=asked), 0)
    assert "--runtime-version=2.11 --python-version=3.7" in told
    assert ("names 1.12" if asked else "names none") in told


@pytest.mark.parametrize(
    ("module", "image"),
    [("tensorflow.keras", "tf-cpu.2-17.py310"), ("torchvision", "pytorch-gpu.2-4.py310")],
)
def test_frameworks_come_with_an_image(module: str, image: str) -> None:
    told = advice(module, spec(COMMAND), 0)
    assert f"us-docker.pkg.dev/vertex-ai/training/{image}:latest" in told
    assert "--master-image-uri=" in advice("torch", spec(PACKAGE, Api.ML), 0)


def test_a_framework_in_an_image_of_its_family_is_a_distribution_like_others() -> None:
    torch = replace(COMMAND, runtime=replace(RUNTIME, family="pytorch"))
    assert "If torchaudio is" in advice("torchaudio", spec(torch), 0)


def test_a_part_of_a_framework_that_is_there() -> None:
    """TensorFlow 2.1 has `tensorflow.io` as an attribute only."""
    program = replace(COMMAND, runtime=replace(RUNTIME, family="tensorflow", version="2.1"))
    told = advice("tensorflow.io", spec(program), 0)
    assert told.startswith("tensorflow 2.1 is there and has no module tensorflow.io")


def test_the_jobs_error_ends_with_it() -> None:
    tail = TRACEBACK.format(module="wget")
    error = Life(job()).up().exits(code=1, tail=tail).up().job.error
    assert error is not None
    before, _, behind = error.message.partition("ModuleNotFoundError: No module named 'wget'\n\n")
    assert "Termination reason: Error." in before
    assert behind.startswith("wget is in the distribution wget, which this job's environment")
    assert "To find out more" in behind
