"""What a job's error advises on the last lines of its program."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import RUNTIME, Life, job
from trainshed.core.failure.advice import advice
from trainshed.core.job import JobSpec, Program
from trainshed.core.names import Api
from trainshed.core.runtime import CONTAINER
from trainshed.replica.protocol import PACKED_PROGRAM

SKLEARN = "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest"
PACKAGE = Program(RUNTIME, module="trainer.task", package_uris=("gs://b/trainer.tar.gz",))
SCRIPT = replace(PACKAGE, module="aiplatform_custom_trainer_script.task", image_uri=SKLEARN)
RUN = replace(PACKAGE, module=f"{PACKED_PROGRAM}.task", image_uri=SKLEARN)
COMMAND = Program(RUNTIME, image_uri=SKLEARN, command=("python3", "-c", "import seaborn"))
OWN_IMAGE = Program(replace(RUNTIME, family=CONTAINER), image_uri="localhost/mine:1")
BUCKET = "samples-of-others"
ADDRESS = f"https://storage.googleapis.com/{BUCKET}/data/digits.npz"


def spec(program: Program, api: Api = Api.VERTEX) -> JobSpec:
    made = job(api=api).spec
    return replace(made, pools=(replace(made.pools[0], program=program),))


def missing(module: str) -> str:
    return f"  import {module}\nModuleNotFoundError: No module named '{module}'\n"


def on(tail: str, program: Program = COMMAND, api: Api = Api.VERTEX) -> str:
    return advice(tail, spec(program, api), 0) or ""


@pytest.mark.parametrize(
    ("tail", "distribution"),
    [
        (missing("sklearn.svm"), "scikit-learn"),
        ("ImportError: No module named cv2\n", "opencv-python-headless"),
        ("/slot/python/bin/python3: No module named seaborn\n", "seaborn"),
        (
            "python3: Error while finding module specification for 'PIL.Image' "
            "(ModuleNotFoundError: No module named 'PIL')",
            "Pillow",
        ),
        (missing("apex") + missing("wandb"), "wandb"),
        ('{"severity":"ERROR","message":"ModuleNotFoundError: No module named \'dill\'"}', "dill"),
        (missing("google.cloud.bigquery.dbapi"), "google-cloud-bigquery"),
        (missing("google.protobuf"), "protobuf"),
    ],
)
def test_a_missing_module_is_in_a_distribution(tail: str, distribution: str) -> None:
    assert f" is in the distribution {distribution}, which" in on(tail)


@pytest.mark.parametrize(
    "tail",
    [
        "ValueError: No module was given",
        "KeyError: 'pandas'",
        "",
        # What is the program's own to write, and what it went on after.
        "PermissionError: [Errno 13] Permission denied: '/gcs/b/model'",
        "PermissionError: [Errno 13] Permission denied: '/tmp/closed/x'",
        "PermissionError: [Errno 13] Permission denied: 'model.pt'",
        "mkdir: cannot create directory '/data': Permission denied\nValueError: no data",
        # Another server, another error.
        "HTTPError: 404 Client Error: Not Found for url: https://example.org/a/b",
        f"FileNotFoundError: {BUCKET}/data.csv",
        f"HTTPError: 403 Client Error: Forbidden for url: {ADDRESS}",
        f"FileNotFoundError: b/{BUCKET}/o\nValueError: no data",
    ],
)
def test_of_other_errors_nothing_is_advised(tail: str) -> None:
    assert not on(tail)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (PACKAGE, 'add "seaborn" to install_requires in the setup.py'),
        (SCRIPT, 'give requirements=["seaborn"] beside script_path'),
        (RUN, "--requirements seaborn"),
        (COMMAND, "sh -c 'pip install seaborn && exec python3"),
        (OWN_IMAGE, '"RUN pip install seaborn" to the Dockerfile'),
        (
            replace(OWN_IMAGE, command=("sh", "-c", f"python3 -m {SCRIPT.module}")),
            'requirements=["seaborn"]',
        ),
    ],
)
def test_where_to_name_it_depends_on_the_way_in(program: Program, words: str) -> None:
    assert words in on(missing("seaborn"), program)


def test_a_module_of_the_jobs_own() -> None:
    assert "find_packages()" in on(missing("trainer.model"), PACKAGE)
    # A neighbour that Python 2 would have found: before the index is spoken of.
    assert on(missing("model"), PACKAGE).startswith(
        "If model is a file of your own in trainer/, import it by its package: `from trainer import model`."
    )
    script = on(missing("utils"), SCRIPT)
    assert "script_path takes that one file alone" in script
    assert "setup.py" not in script
    run = on(missing("utils"), RUN)
    assert "trainshed run DIRECTORY" in run
    assert "setup.py" not in run
    assert "trainshed_program" not in run
    unknown = on(missing("mymodel.layers"))
    assert "If mymodel is a module of your own" in unknown
    assert "pip install mymodel" in unknown


def test_frameworks_come_with_an_image() -> None:
    assert "vertex-ai/training/tf-cpu.2-17.py310:latest" in on(missing("tensorflow.keras"))
    assert "vertex-ai/training/pytorch-xla.2-4.py310:latest" in on(missing("torchvision"), PACKAGE)
    assert "name one, such as pytorch (" in on(missing("torch"), RUN)
    torch = replace(COMMAND, runtime=replace(RUNTIME, family="pytorch"))
    assert "If torchaudio is" in on(missing("torchaudio"), torch)
    # TensorFlow 2.1 has `tensorflow.io` as an attribute only.
    old = replace(COMMAND, runtime=replace(RUNTIME, family="tensorflow", version="2.1"))
    assert on(missing("tensorflow.io"), old).startswith(
        "tensorflow 2.1 is there and has no module tensorflow.io"
    )


@pytest.mark.parametrize(
    ("tail", "path"),
    [
        ("PermissionError: [Errno 13] Permission denied: '/workspace'", "/workspace"),
        ("OSError: [Errno 30] Read-only file system: '/usr/x'", "/usr/x"),
        ("mkdir: cannot create directory ‘/data’: Permission denied\n", "/data"),
        ("touch: cannot touch '/opt/it': Read-only file system", "/opt/it"),
        ("cp: cannot create regular file '/app/m.py': Permission denied", "/app/m.py"),
        ("sh: 1: cannot create /workspace/log: Permission denied", "/workspace/log"),
    ],
)
def test_a_prebuilt_image_is_told_where_it_may_write(tail: str, path: str) -> None:
    words = on(tail)
    assert f"cannot write {path} here" in words
    assert not on(tail, OWN_IMAGE)


@pytest.mark.parametrize(
    "tail",
    [
        # pandas by gcsfs; the storage library; Keras; requests; gsutil and gcloud, which were called.
        f"    raise FileNotFoundError(path)\nFileNotFoundError: b/{BUCKET}/o\n",
        "google.api_core.exceptions.NotFound: 404 GET http://h/b/x?alt=media: {'error': {'code': 404, "
        f"'message': 'The specified bucket does not exist. (bucket: {BUCKET})'}}}}\n",
        f"Exception: URL fetch failure on {ADDRESS}: 404 -- Not Found",
        f"requests.exceptions.HTTPError: 404 Client Error: Not Found for url: {ADDRESS}",
        f"BucketNotFoundException: 404 gs://{BUCKET} bucket does not exist.\n"
        f"CalledProcessError: Command '['gsutil', 'cp', 'gs://{BUCKET}/x', 'x']' returned 1.",
        f"ERROR: (gcloud.storage.ls) gs://{BUCKET} not found: 404.",
    ],
)
def test_whoever_looks_for_a_public_bucket_is_told_that_it_is_not_here(tail: str) -> None:
    assert f"there is no bucket {BUCKET} here" in on(tail)


def test_whoever_writes_below_gcs_is_text_make_the_directory() -> None:
    text = on("FileNotFoundError: [Errno 2] No such file or directory: '/gcs/b/run/model/m.pt'\n")
    assert "os.makedirs" in text and "gs://b/run/model/m.pt" in text
    assert not on("FileNotFoundError: [Errno 2] No such file or directory: '/data/m.pt'\n")


def test_the_jobs_error_ends_with_it() -> None:
    error = Life(job()).up().exits(code=1, tail=missing("wget")).up().job.error
    assert error is not None
    before, _, behind = error.message.partition("ModuleNotFoundError: No module named 'wget'\n\n")
    assert "Termination reason: Error." in before
    assert behind.startswith("wget is in the distribution wget, which this job's environment")
    assert "To find out more" in behind
