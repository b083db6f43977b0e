"""Where each block of commands that the guides show is proved: here against a real service, or elsewhere.

tests/unit/test_docs_commands.py holds the table to the pages: a block that is not here fails it, and so does
a row without a block. Somebody who adds a block adds a row: `Runs()` if a service on this machine is enough.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """The block is run by tests/docs/test_commands.py, in the order of this table."""

    #: Only by ./dev test-all: it takes long, or needs gcloud or the Vertex SDK.
    soak: bool = False
    #: Keys of blocks of the same language whose lines come first.
    after: tuple[str, ...] = ()
    #: Lines before those of a fragment.
    prelude: str = ""
    #: What `JOB` stands for.
    job: str = "done"
    #: Run at a terminal, where some commands do more.
    terminal: bool = False
    #: A text that the output has.
    says: str = ""


@dataclass(frozen=True, slots=True)
class PartOf:
    """The block is run with another one, which names it in `after`."""

    key: str


@dataclass(frozen=True, slots=True)
class File:
    """The block is a file, which commands of other blocks name."""

    name: str


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The block is not run: why, and the test that proves what it says."""

    reason: str
    test: str


_SDK = "import os\nfrom google.cloud import aiplatform\n"
_VERTEX = (
    'aiplatform.init(api_endpoint=os.environ["TRAINSHED_ENDPOINT"], api_transport="rest",'
    ' staging_bucket="gs://trainshed")\n'
)
_SLURM = Elsewhere("needs a Slurm cluster", "tests/slurm/test_same_job.py")
_TORCH = Elsewhere("a fragment of a PyTorch program", "tests/reduction/test_torch.py")
_TLS = "needs certificates, and opens ports to other machines"

BLOCKS: dict[str, Runs | PartOf | File | Elsewhere] = {
    "docs/clients.md#Clients": Runs(),
    "README.md#Your own program, in five lines": Runs(terminal=True, says="State     SUCCEEDED"),
    "docs/run.md#Run a program of your own": Runs(),
    "docs/run.md#From data to a model": File("train.py"),
    "docs/run.md#From data to a model 2": Runs(says="score 1.0"),
    "docs/run.md#From data to a model 3": Runs(says="epoch 3/3"),
    "README.md#Its own commands": Runs(),
    "docs/notifications.md#Notifications": Elsewhere(
        "needs targets in the service's settings",
        "tests/contract/notifying/test_notifying.py::test_jobs_name_targets_that_there_are",
    ),
    "docs/console.md#The web console": Runs(says="/login?code="),
    "docs/troubleshooting.md#My job waits": Runs(says="Would start now"),
    "docs/troubleshooting.md#My job fails": Runs(job="failed", says="no data today"),
    "docs/operate.md#How long jobs are kept": Runs(says="would be deleted"),
    "docs/operate.md#Start with the machine": Runs(),
    "docs/secrets.md#Secrets": Runs(says="tls-key"),
    "docs/shell.md#A shell in a running replica": Runs(job="going", says="in the replica"),
    "docs/shell.md#Autopsies": Runs(soak=True, job="failed"),
    "docs/tensorboard.md#TensorBoard": Runs(says="http://"),
    "docs/reduction-server.md#Reduction Server": Runs(),
    "docs/reduction-server.md#Images of your own": Runs(),
    "docs/backup.md#Take one": Runs(soak=True, says="Backed up"),
    "docs/backup.md#Restore it": Runs(soak=True, says="Restored"),
    "docs/run.md#Without a service": Runs(soak=True, says="epoch 3"),
    "docs/drills.md#Drills": Runs(soak=True, job="going", says="PASS"),
    "README.md#See it work 2": Runs(soak=True),
    "docs/tuning.md#Tune hyperparameters": Runs(
        soak=True, job="trainshed-demo-tuning", says="learning-rate"
    ),
    "README.md#Use it with what you have": Runs(soak=True),
    "README.md#Use it with what you have 2": Runs(soak=True),
    "docs/clients.md#gcloud": Runs(soak=True),
    "docs/clients.md#Vertex AI SDK": Runs(soak=True),
    "docs/clients.md#Vertex AI SDK 2": Runs(soak=True, prelude=_SDK),
    "docs/clients.md#API client library": Runs(soak=True),
    "docs/experiments.md#Experiments and tensorboards": Runs(
        soak=True, prelude=_SDK + _VERTEX, says="third"
    ),
    "docs/experiments.md#In a terminal": Runs(soak=True, says="RUNS"),
    "docs/models.md#Models": PartOf("docs/models.md#Evaluations"),
    "docs/models.md#Export": PartOf("docs/models.md#Evaluations"),
    "docs/models.md#Evaluations": Runs(
        soak=True,
        prelude=_SDK + _VERTEX,
        after=("docs/models.md#Models", "docs/models.md#Export"),
        says="0.93",
    ),
    "docs/models.md#Lineage": Runs(soak=True, says="gs://trainshed/runs/8/model"),
    # What is proved elsewhere.
    "README.md#See it work": Elsewhere("these run the tests themselves", "tests/e2e/test_demo.py"),
    "docs/clients.md#Node, Java, Go and other clients": Elsewhere(
        "needs Node and its packages", "tests/e2e/test_grpc_clients.py::test_the_node_client"
    ),
    "docs/clients.md#Storage": Elsewhere(
        "needs rclone, whose requests are played",
        "tests/unit/test_buckets_http.py::test_a_client_that_knows_no_308_is_told_otherwise",
    ),
    "docs/containers.md#gcloud builds images": Elsewhere(
        "a script for PATH, not a command",
        "tests/e2e/test_containers.py::test_gcloud_packages_a_directory_and_its_image_runs",
    ),
    "docs/datasets.md#Datasets": Elsewhere(
        "stands for one's own files and address", "tests/e2e/test_datasets_sdk.py"
    ),
    "docs/datasets.md#Training with a dataset": Elsewhere(
        "stands for one's own program", "tests/e2e/test_datasets_sdk.py"
    ),
    "docs/datasets.md#Training with a dataset 2": Elsewhere(
        "a fragment of a program of a job", "tests/e2e/test_datasets_sdk.py"
    ),
    "docs/datasets.md#Training with a dataset 3": Elsewhere(
        "needs the datasets of that page", "tests/contract/cli/test_listing.py"
    ),
    "docs/experiments.md#Curves of jobs": Elsewhere(
        "a fragment of a program of a job", "tests/e2e/test_job_curves.py"
    ),
    "docs/experiments.md#Curves of jobs 2": Elsewhere(
        "needs a job that wrote event files", "tests/e2e/test_job_curves.py"
    ),
    "docs/programs.md#Programs as the public writes them": Elsewhere(
        "these run tests, for tens of minutes", "tests/programs/test_programs.py"
    ),
    "docs/reduction-server.md#How to run it": Elsewhere(
        "needs a package with PyTorch", "tests/e2e/test_reduction_ddp.py"
    ),
    "docs/reduction-server.md#How to run it 2": Elsewhere(
        "needs a program with PyTorch", "tests/e2e/test_reduction_ddp.py"
    ),
    "docs/reduction-server.md#Without DDP, or by name": _TORCH,
    "docs/reduction-server.md#Without DDP, or by name 2": _TORCH,
    "docs/reduction-server.md#Without DDP, or by name 3": Elsewhere(
        "a fragment of a program of a job", "tests/reduction/test_arrays.py"
    ),
    "docs/remote.md#A service for other machines": Elsewhere(_TLS, "tests/e2e/test_tls.py"),
    "docs/remote.md#A service for other machines 2": Elsewhere(_TLS, "tests/e2e/test_tls.py"),
    "docs/remote.md#A service for other machines 3": Elsewhere(_TLS, "tests/e2e/test_tls.py"),
    "docs/remote.md#A service for other machines 4": Elsewhere(
        "needs another machine",
        "tests/e2e/test_tls.py::test_the_command_line_and_its_environment_trust_the_service",
    ),
    "docs/secrets.md#Naming a secret in a job": Elsewhere(
        "a fragment of a client's program", "tests/e2e/test_secrets.py"
    ),
    "docs/tensorboard.md#Files of elsewhere: the uploader": Elsewhere(
        "needs TensorFlow beside the SDK", "tests/programs/test_uploader.py"
    ),
    # Every block of a page.
    "docs/slurm.md": _SLURM,
}

COMMANDS: dict[str, Elsewhere] = {
    r"\./dev up|trainshed up\b": Elsewhere(
        "the test's own service is started so, on a free port", "tests/docs/test_commands.py"
    ),
    r"trainshed down\b": Elsewhere("it comes last", "tests/docs/test_commands.py"),
    r'export PATH="\$PWD/\.venv/bin': Elsewhere(
        "the test's PATH has the command", "tests/docs/test_commands.py"
    ),
    r".*\bssh elsewhere\b": Elsewhere(
        "needs another machine",
        "tests/e2e/test_backup.py::test_a_backup_under_load_is_restored_beside_the_original",
    ),
    r"trainshed studies describe STUDY": Elsewhere(
        "needs a study", "tests/contract/cli/test_listing.py"
    ),
}
"""Commands in blocks that are run which are not run there, by how they begin."""

JOBS: dict[str, str] = {
    r"trainshed (drill|jobs shell) JOB": "going",
}
"""Commands that need another job than that of their block, by how they begin."""

INPUTS: dict[str, str] = {
    r"trainshed jobs (shell|autopsy) \w+( workerpool\d-0)?$": "echo in the replica\n",
    r"trainshed secrets set db-password": "hunter22\n",
}
"""Standard input of commands, by how they begin; others have none."""
