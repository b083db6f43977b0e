"""A failed job's error contains advice derived from the last lines of its program's output."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import RUNTIME, Life, job
from trainshed.core.catalog.machines import machine_types
from trainshed.core.failure.advice import advice, advice_on_end
from trainshed.core.job import ExitRecord, JobSpec, Program
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


def advice_for(tail: str, program: Program = COMMAND, api: Api = Api.VERTEX) -> str:
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
def test_advice_names_the_distribution_of_a_missing_module(tail: str, distribution: str) -> None:
    assert f" is in the distribution {distribution}, which" in advice_for(tail)


@pytest.mark.parametrize(
    "tail",
    [
        "ValueError: No module was given",
        "KeyError: 'pandas'",
        "",
        # Paths that the program may create, and an error that the program survived.
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
def test_unknown_error_has_no_advice(tail: str) -> None:
    assert not advice_for(tail)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (PACKAGE, 'add "seaborn" to install_requires in the setup.py'),
        (SCRIPT, 'pass requirements=["seaborn"] together with script_path'),
        (RUN, "--requirements seaborn"),
        (COMMAND, "sh -c 'pip install seaborn && exec python3"),
        (OWN_IMAGE, '"RUN pip install seaborn" to the Dockerfile'),
        (replace(OWN_IMAGE, command=("sh", "-c", f"python3 -m {SCRIPT.module}")), 'requirements=["seaborn"]'),
    ],
)
def test_advice_for_a_missing_module_depends_on_the_submit_method_of_the_job(
    program: Program, words: str
) -> None:
    assert words in advice_for(missing("seaborn"), program)


def test_missing_module_of_the_users_own_code_has_packaging_advice() -> None:
    assert "find_packages()" in advice_for(missing("trainer.model"), PACKAGE)
    # Python 2 would have found this module in the same directory. That advice comes before the package index.
    assert advice_for(missing("model"), PACKAGE).startswith(
        "If model is a file of your own in trainer/, import it by its package: `from trainer import model`."
    )
    script = advice_for(missing("utils"), SCRIPT)
    assert "script_path only uploads one file" in script
    assert "setup.py" not in script
    run = advice_for(missing("utils"), RUN)
    assert "trainshed run DIRECTORY" in run
    assert "setup.py" not in run
    assert "trainshed_program" not in run
    unknown = advice_for(missing("mymodel.layers"))
    assert "If mymodel is your own module" in unknown
    assert "pip install mymodel" in unknown


def test_missing_framework_advice_names_a_prebuilt_image() -> None:
    assert "vertex-ai/training/tf-cpu.2-17.py310:latest" in advice_for(missing("tensorflow.keras"))
    assert "vertex-ai/training/pytorch-xla.2-4.py310:latest" in advice_for(missing("torchvision"), PACKAGE)
    assert "set one, such as pytorch (" in advice_for(missing("torch"), RUN)
    torch = replace(COMMAND, runtime=replace(RUNTIME, family="pytorch"))
    assert "If torchaudio is" in advice_for(missing("torchaudio"), torch)
    # TensorFlow 2.1 has `tensorflow.io` as an attribute only.
    old = replace(COMMAND, runtime=replace(RUNTIME, family="tensorflow", version="2.1"))
    assert advice_for(missing("tensorflow.io"), old).startswith(
        "tensorflow 2.1 is installed and has no module tensorflow.io"
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
def test_write_error_in_a_prebuilt_image_lists_writable_directories(tail: str, path: str) -> None:
    words = advice_for(tail)
    assert f"cannot write {path} here" in words
    assert not advice_for(tail, OWN_IMAGE)


@pytest.mark.parametrize(
    "tail",
    [
        # Errors of pandas with gcsfs, the storage library, Keras, requests, gsutil and gcloud.
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
def test_advice_for_a_missing_public_bucket_states_that_the_bucket_is_not_local(tail: str) -> None:
    assert f"The bucket {BUCKET} or the object" in advice_for(tail)


def test_advice_for_a_missing_directory_below_gcs_suggests_makedirs() -> None:
    text = advice_for("FileNotFoundError: [Errno 2] No such file or directory: '/gcs/b/run/model/m.pt'\n")
    assert "os.makedirs" in text and "gs://b/run/model/m.pt" in text
    assert not advice_for("FileNotFoundError: [Errno 2] No such file or directory: '/data/m.pt'\n")


ENOENT = "[Errno 2] No such file or directory"


@pytest.mark.parametrize(
    ("tail", "path"),
    [
        (f"FileNotFoundError: {ENOENT}: 'gs://b/data/x.csv'", "b/data/x.csv"),
        # The program made these paths absolute or normalized them.
        (f"FileNotFoundError: {ENOENT}: '/slots/7/files/gs:/b/x.png'", "b/x.png"),
        ("NotADirectoryError: [Errno 20] Not a directory: b'gs://b/x' -> 'gs://b/y'", "b/x"),
        ("OSError: [Errno 22] Unable to open file (name = 'gs://b/m.h5', errno = 2)", "b/m.h5"),
        ("RuntimeError: Parent directory gs://b/model does not exist.", "b/model"),
        ("FileNotFoundError: gs://b/x.txt not found.", "b/x.txt"),
        ("ValueError: File not found: filepath=gs://b/m.keras. Please ensure", "b/m.keras "),
        ("ls: cannot access 'gs://b/d': No such file or directory", "b/d"),
        ("cat: gs://b/x: No such file or directory\n", "b/x "),
        (f"python3: can't open file '/files/gs://b/t.py': {ENOENT}", "b/t.py"),
    ],
)
def test_advice_for_a_gs_uri_opened_as_a_file_shows_the_gcs_path(tail: str, path: str) -> None:
    assert f"/gcs/{path}" in advice_for(tail)


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        ("KeyError: 'AIP_MODEL_DIR'", "Set baseOutputDirectory"),
        ("run.sh: line 3: AIP_CHECKPOINT_DIR: unbound variable", "Set baseOutputDirectory"),
        ("sh: 1: AIP_TENSORBOARD_LOG_DIR: parameter not set", "Set baseOutputDirectory"),
        ("KeyError: 'AIP_TRAINING_DATA_URI'", "inputDataConfig"),
        ("ValueError: Error: environment variable LOCAL_RANK expected, but not set", "torchrun"),
        ("KeyError: 'LOCAL_RANK'", "torchrun"),
        ("KeyError: 'CLOUD_ML_TRIAL_ID'", "trials of a tuning job"),
        ("KeyError: 'TF_CONFIG'", "more than one replica"),
        ("KeyError: 'RANK'", "other pools have no rank"),
    ],
)
def test_error_of_a_missing_environment_variable_explains_when_the_variable_is_set(
    tail: str, words: str
) -> None:
    assert words in advice_for(f"Traceback (most recent call last):\n  x\n{tail}\n")


def test_ml_job_has_advice_for_missing_vertex_variables() -> None:
    assert "--job-dir" in advice_for("KeyError: 'AIP_MODEL_DIR'", PACKAGE, Api.ML)
    assert "Read TF_CONFIG" in advice_for("KeyError: 'CLUSTER_SPEC'", PACKAGE, Api.ML)


NO_GL = "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"


def test_missing_system_library_has_installation_advice() -> None:
    assert "opencv-python-headless" in advice_for(f"  import cv2\n{NO_GL}\n")
    assert "RUN apt-get" in advice_for(NO_GL)
    assert "image's Dockerfile" in advice_for(NO_GL, OWN_IMAGE)
    loader = "./tool: error while loading shared libraries: libtcl8.6.so: cannot open"
    assert "lacks the system library libtcl8.6.so" in advice_for(loader)
    assert "libsndfile" in advice_for("OSError: cannot load library 'libsndfile.so': not there")


@pytest.mark.parametrize(
    "tail",
    [
        "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)\n"
        "E: Unable to acquire the dpkg frontend lock, are you root?",
        "E: List directory /var/lib/apt/lists/partial is missing. - Acquire (30: Read-only)",
        "run.sh: line 1: apt-get: command not found",
        "sh: 1: sudo: not found",
        "Error: This command has to be run with superuser privileges (under the root user).",
    ],
)
def test_advice_for_a_failed_apt_get_suggests_a_custom_image(tail: str) -> None:
    assert "RUN apt-get" in advice_for(tail)
    assert not advice_for(tail, OWN_IMAGE)


@pytest.mark.parametrize(
    "tail",
    [
        "/usr/bin/python3: can't open file '/slot/files/train.py': [Errno 2] No such file or directory",
        "bash: ./prepare.sh: No such file or directory",
        "run.sh: line 2: lib/prepare.sh: No such file or directory",
    ],
)
def test_advice_for_a_missing_script_suggests_to_upload_its_directory(tail: str) -> None:
    assert "trainshed run DIRECTORY" in advice_for(tail, RUN)
    assert not advice_for(tail, PACKAGE)


def test_command_given_as_a_single_string_has_advice_to_split_the_command() -> None:
    tail = "python3 -m 'a b': command not found; looked in /bin"
    assert '["python3", "-m", "a b"]' in advice_for(tail)
    assert not advice_for("python3: command not found; looked in /bin")
    assert "128 KiB" in advice_for("python3: cannot be executed: Argument list too long")


def test_rendezvous_port_conflict_has_torchrun_advice() -> None:
    tail = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 24343, code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert "--standalone" in advice_for(tail)
    two = replace(spec(COMMAND), pools=job(1, 1).spec.pools)
    assert "--node_rank=$NODE_RANK" in (advice(tail, two, 0) or "")
    assert not advice_for("OSError: [Errno 98] Address already in use")


@pytest.mark.parametrize(
    ("code", "number", "package", "words"),
    [
        (139, None, False, "Status 139 stands for a signal: SIGSEGV"),
        (137, None, False, "Status 137 stands for a signal: SIGKILL"),
        (None, 11, True, "Status 11 stands for a signal: SIGSEGV"),
        (None, 11, False, "Status 139 stands for a signal: SIGSEGV"),
        (None, 6, True, "Status 6 stands for a signal: SIGABRT"),
        (135, None, True, "Status 135 stands for a signal: SIGBUS"),
        (245, None, False, "Status 245 stands for a signal: SIGSEGV"),
    ],
)
def test_exit_status_of_a_signal_names_the_signal(
    code: int | None, number: int | None, package: bool, words: str
) -> None:
    record = ExitRecord(exit_code=code, signal=number, oom=False, started=1, ended=2)
    status = code if code is not None else (number or 0) + 128 * (not package)
    text = advice_on_end(record, status, spec(PACKAGE if package else COMMAND), 0) or ""
    assert text.startswith(words)
    assert ("PYTHONFAULTHANDLER=1" in text) is ("SIGKILL" not in text)
    dumped = replace(record, tail="Fatal Python error: Segmentation fault\n")
    assert "PYTHONFAULTHANDLER" not in (advice_on_end(dumped, status, spec(COMMAND), 0) or "")


@pytest.mark.parametrize("status", [1, 2, 11, 9, 127, 143, 255])
def test_ordinary_exit_status_has_no_signal_advice(status: int) -> None:
    record = ExitRecord(exit_code=status, signal=None, oom=False, started=1, ended=2)
    assert advice_on_end(record, status, spec(COMMAND), 0) is None


@pytest.mark.parametrize("main", [True, False])
def test_out_of_memory_advice_shows_the_limit_and_a_larger_machine(main: bool) -> None:
    """The advice is the same if a child process was killed instead of the main process."""
    record = ExitRecord(
        exit_code=None if main else 1, signal=9 if main else None, oom=main, started=1, ended=2
    )
    record = replace(record, child_oom=0 if main else 1, tail=missing("wget"))
    text = advice_on_end(record, 137, spec(COMMAND), 0) or ""
    assert "The memory limit of a replica on n1-standard-4 is 12.0 GiB" in text
    assert "n1-highmem-4, " in text


def test_out_of_memory_advice_on_the_largest_machine_suggests_no_larger_machine() -> None:
    largest = max(machine_types().values(), key=lambda kind: kind.memory_limit_bytes)
    program = spec(COMMAND)
    pool = program.pools[0]
    machine = replace(pool.machine, type=largest.name, memory_limit_bytes=largest.memory_limit_bytes)
    record = ExitRecord(exit_code=None, signal=9, oom=True, started=1, ended=2)
    text = advice_on_end(record, 137, replace(program, pools=(replace(pool, machine=machine),)), 0)
    assert text and "larger machine type" not in text


def test_error_of_a_job_that_ran_out_of_memory_contains_advice() -> None:
    error = Life(job()).up().exits(code=None, signal=9, oom=True).up().job.error
    assert error is not None
    first, _, more = error.message.partition("\n")
    assert first.endswith("ran out of memory and exited with a non-zero status of 137.")
    assert "GiB" in more and error.advice == more


def test_error_of_a_failed_job_contains_the_advice() -> None:
    error = Life(job()).up().exits(code=1, tail=missing("wget")).up().job.error
    assert error is not None
    before, _, behind = error.message.partition("ModuleNotFoundError: No module named 'wget'\n\n")
    assert "Termination reason: Error." in before
    assert behind.startswith("wget is in the distribution wget, which this job's environment")
    assert "To find out more" in behind
