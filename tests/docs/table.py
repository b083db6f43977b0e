"""The command blocks of the guides that tests/docs/test_commands.py runs against a real service, in this
order. Tests of their subjects cover the other blocks.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Runs:
    """A block that the test runs."""

    #: Keys of blocks of the same language to run first.
    after: tuple[str, ...] = ()
    #: Lines before those of a fragment.
    prelude: str = ""
    #: Value of `JOB`.
    job: str = "done"
    #: Run in a terminal, because some commands then do more.
    terminal: bool = False
    #: Expected text in the output.
    expected_output: str = ""


@dataclass(frozen=True, slots=True)
class File:
    """A block that the test writes to a file, for commands of other blocks."""

    name: str


_SDK = "import os\nfrom google.cloud import aiplatform\n"
_VERTEX = (
    'aiplatform.init(api_endpoint=os.environ["TRAINSHED_ENDPOINT"], api_transport="rest",'
    ' staging_bucket="gs://trainshed")\n'
)

BLOCKS: dict[str, Runs | File] = {
    "docs/clients.md#Clients": Runs(),
    "README.md#Install and run your first job": Runs(terminal=True, expected_output="SUCCEEDED"),
    "docs/run.md#Run a program of your own": Runs(),
    "docs/run.md#From data to a model": File("train.py"),
    "docs/run.md#From data to a model 2": Runs(expected_output="score 1.0"),
    "docs/run.md#From data to a model 3": Runs(expected_output="epoch 3/3"),
    "README.md#Use the command line": Runs(),
    "docs/console.md#Web console": Runs(expected_output="/login?code="),
    "docs/troubleshooting.md#My job waits": Runs(expected_output="Would start now"),
    "docs/troubleshooting.md#My job fails": Runs(job="failed", expected_output="no data today"),
    "docs/operate.md#Start and stop": Runs(),
    "docs/team.md#Add a user": Runs(expected_output="is a token of ana@corp.example"),
    "docs/team.md#Grant and revoke roles": Runs(expected_output="does not have the role"),
    "docs/team.md#Use service accounts": Runs(expected_output="created key"),
    "docs/team.md#Limits and usage": Runs(expected_output="MACHINE-HOURS"),
    "docs/secrets.md#Secrets": Runs(expected_output="tls-key"),
    "docs/shell.md#Open a shell in a running replica": Runs(job="going", expected_output="in the replica"),
    "docs/shell.md#Autopsies": Runs(job="failed"),
    "docs/tensorboard.md#TensorBoard": Runs(expected_output="http://"),
    "docs/reduction-server.md#Reduction Server": Runs(),
    "docs/backup.md#Take a backup": Runs(expected_output="Backed up"),
    "docs/backup.md#Restore a backup": Runs(expected_output="Restored"),
    "docs/emulator.md#An emulator for tests": Runs(expected_output="the model of today"),
    "docs/emulator.md#An emulator for tests 2": Runs(expected_output="{}"),
    "docs/emulator.md#pytest": File("test_deploy.py"),
    "docs/emulator.md#pytest 2": Runs(expected_output="1 passed"),
    "docs/run.md#Without a service": Runs(expected_output="epoch 3"),
    "docs/drills.md#Drills": Runs(job="going", expected_output="Outcome"),
    "docs/tuning.md#Tune hyperparameters": Runs(job="task", expected_output="task-trial-12"),
    "README.md#Use your existing clients": Runs(),
    "README.md#Use your existing clients 2": Runs(),
    "docs/clients.md#gcloud": Runs(),
    "docs/clients.md#Vertex AI SDK": Runs(),
    "docs/clients.md#Vertex AI SDK 2": Runs(prelude=_SDK),
    "docs/clients.md#API client library": Runs(),
    "docs/experiments.md#Experiments and tensorboards": Runs(prelude=_SDK + _VERTEX, expected_output="third"),
    "docs/experiments.md#In a terminal": Runs(expected_output="displayName: third"),
    "docs/models.md#Evaluations": Runs(
        prelude=_SDK + _VERTEX,
        after=("docs/models.md#Models", "docs/models.md#Export"),
        expected_output="0.93",
    ),
    "docs/models.md#Lineage": Runs(expected_output="gs://trainshed/runs/8/model"),
}

SKIPPED_COMMANDS = re.compile(
    r"\./dev up|trainshed up\b|trainshed down\b|export PATH=|.*\bssh elsewhere\b"
    r"|trainshed studies describe STUDY"
)
"""Prefixes of commands to leave out: the test itself starts and stops the service."""

JOBS: dict[str, str] = {r"trainshed (drill|jobs shell) JOB": "going"}
"""Commands that need another job than their block, by prefix."""

INPUTS: dict[str, str] = {
    r"trainshed jobs (shell|autopsy) \w+( workerpool\d-0)?$": "echo in the replica\n",
    r"trainshed secrets set db-password": "hunter22\n",
}
"""Standard input of commands, by prefix. Other commands have none."""
