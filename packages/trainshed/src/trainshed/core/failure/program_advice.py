"""Advice on errors that a program's environment explains: paths, variables, libraries, commands, ranks. Pure.

Each function reads the last lines of a program's log. It returns a few sentences, or None for another error.
"""

import json
import re
import shlex
from typing import Final

from trainshed.core.job import JobSpec
from trainshed.core.names import Api
from trainshed.core.runtime import CONTAINER

_OPENED: Final = (
    # Python, and a script whose path is gs://, which Python joins to the working directory.
    re.compile(r"\[Errno \d+\] [^\n]*?['\"](?:/[^'\"\n]*?/)?(gs:/+[^'\"\n]+)['\"]"),
    re.compile(r"can't open file '[^'\n]*?(gs:/+[^'\n]+)'"),
    # NumPy, h5py, joblib and others.
    re.compile(
        r"(?:FileNotFoundError|OSError|File not found|Parent directory)[^\n]*?(gs:/+[^\s'\"(),]+)"
    ),
    # Shells and their commands, R.
    re.compile(r"(gs://[^\s'\"]{1,1100}?)['\"\u2019]?: No such file or directory"),
)
_OBJECT_ABSENT: Final = re.compile(r"\b40[34]\b|matched no objects|No URLs matched")
"""An error of a client that does read gs://."""


def on_gs_path(tail: str, _spec: JobSpec, _pool: int) -> str | None:
    """Advise a program that opens a gs:// path as a file."""
    lines = tail.rstrip().splitlines()[-3:]
    if _OBJECT_ABSENT.search("\n".join(lines)):
        return None
    for line in reversed(lines):
        for pattern in _OPENED:
            if match := pattern.search(line):
                name = re.sub("^gs:/+", "", match[1]).rstrip(".:,")
                return (
                    f"open() and most libraries read files, and gs://{name} is no file. Each "
                    f"bucket is also a directory: use /gcs/{name} (path.replace('gs://', "
                    f"'/gcs/')). A library that reads gs:// "
                    "works as well, such as google-cloud-storage, gcsfs (pandas), or tf.io.gfile."
                )
    return None


_UNSET: Final = re.compile(
    r"(?:KeyError: ['\"](\w+)['\"]|\b(\w{1,40}): (?:unbound variable|parameter (?:null or )?not set)"
    r"|environment variable ['\"]?(\w+)['\"]? (?:expected|is not set|not set|is required))"
)
_DIRECTORIES: Final = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
_DATA: Final = (
    *("AIP_DATA_FORMAT", "AIP_TRAINING_DATA_URI", "AIP_VALIDATION_DATA_URI"),
    "AIP_TEST_DATA_URI",
)
_LAUNCHED: Final = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
_TRIAL: Final = ("CLOUD_ML_TRIAL_ID", "CLOUD_ML_HP_METRIC_FILE", "CLOUD_ML_HP_METRIC_TAG")
_OF_RANKS: Final = ("RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


def on_variable(tail: str, spec: JobSpec, _pool: int) -> str | None:
    """Advise a program that reads a variable of the service that its job does not have."""
    lines = tail.rstrip().splitlines()
    match = _UNSET.search(lines[-1]) if lines else None
    name = next(filter(None, match.groups()), "") if match else ""
    if name in _DIRECTORIES:
        if spec.api is Api.ML:
            return (
                f"Jobs of AI Platform Training have no {name}. Read the argument --job-dir instead."
            )
        return (
            f"{name} is set only if the job has an output directory: set baseOutputDirectory "
            "(base_output_dir in the SDK), for example gs://BUCKET/RUN."
        )
    if name in _DATA:
        return (
            f"{name} is set only in a training pipeline with a dataset (inputDataConfig). A "
            f"custom job has no "
            "dataset: pass the path as an argument."
        )
    if name in _LAUNCHED:
        return (
            f"{name} is set by a launcher, one for each process. Start the program with torchrun "
            f"or accelerate launch, or use os.environ.get({name!r}, '0')."
        )
    if name in _TRIAL:
        return (
            f"{name} is set only in trials of a tuning job. Use os.environ.get({name!r}) elsewhere."
        )
    if name == "TF_CONFIG":
        return (
            "TF_CONFIG is set only in jobs of more than one replica, as at Vertex AI. Without it, "
            "train on one machine: os.environ.get('TF_CONFIG')."
        )
    if name == "CLUSTER_SPEC":
        return "Of AI Platform Training jobs, only those in containers have CLUSTER_SPEC. Read TF_CONFIG."
    if name in _OF_RANKS:
        return f"{name} is set for the primary and the workers only. Other pools have no rank."
    return None


_LIBRARY: Final = re.compile(
    r"(lib[\w.+-]+?\.so[.\d]*): cannot open shared object file"
    r"|error while loading shared libraries: (lib[\w.+-]+?\.so[.\d]*)"
    r"|OSError: (?:cannot load library|no library called) ['\"](lib[\w.+-]+)"
)
_OF_DISPLAYS: Final = (
    *(
        "libGL",
        "libEGL",
        "libgthread",
        "libglib",
        "libSM",
        "libICE",
        "libXext",
        "libXrender",
        "libX11",
    ),
    "libxcb",
)
_OWN_IMAGE: Final = (
    "Build an image of your own with it (RUN apt-get update && apt-get install -y PACKAGE in its "
    "Dockerfile) and set it as imageUri."
)


def on_library(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Advise a program that lacks a library of the system."""
    match = _LIBRARY.search("\n".join(tail.rstrip().splitlines()[-3:]))
    if match is None:
        return None
    library: str = match[1] or match[2] or match[3]
    if library.startswith(_OF_DISPLAYS) and "cv2" in tail:
        where = "Dockerfile" if _has_own_files(spec, pool) else "requirements"
        return (
            f"opencv-python needs {library}, a library for displays, which servers lack. Install "
            f"opencv-python-headless in its place: change it in the {where}. If another package "
            f"requires "
            "opencv-python, run pip uninstall -y opencv-python opencv-python-headless, and then "
            "pip install opencv-python-headless."
        )
    if _has_own_files(spec, pool):
        return f"The image lacks the system library {library}. Add its package to the image's Dockerfile."
    return f"{library} is a library of the system, and the environment of this job lacks it. {_OWN_IMAGE}"


def _has_own_files(spec: JobSpec, pool: int) -> bool:
    return spec.pool(pool).program.runtime.family == CONTAINER


_INSTALLER: Final = re.compile(
    r"are you root\?"
    r"|E: (?:Could not open (?:lock )?file|Unable to lock|List directory) /var/(?:lib/(?:dpkg|apt)|cache)"
    r"|dpkg: error: requested operation requires superuser|run with superuser privileges"
    r"|ERROR: Unable to (?:lock database|open log): (?:Permission denied|Read-only)"
    r"|\b(?:apt-get|apt|yum|dnf|apk|sudo): (?:command )?not found|sudo: .*(?:no new privileges|effective uid)"
)


def on_installer(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Advise a program that installs packages of the system without the rights for it."""
    if not _INSTALLER.search(tail) or _has_own_files(spec, pool):
        return None
    return (
        "apt-get, yum, apk and sudo need the rights of root and a file system of their own. A "
        "program in a "
        f"prebuilt image has neither here; pip install works. {_OWN_IMAGE}"
    )


_BESIDE: Final = re.compile(
    r"can't open file '(?:[^'\n]*/)?([^'/\n]+)': \[Errno 2\]"
    r"|(?:^|: )(?:line \d+: )?(?:\./)?([\w./-]+\.(?:py|sh|R|jl|pl)): (?:No such file or directory|not found)",
    re.MULTILINE,
)
_RUN_PROGRAM: Final = "trainshed_program."


def on_file_beside(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Advise a script of `trainshed run` that calls another file."""
    program = spec.pool(pool).program
    match = _BESIDE.search("\n".join(tail.rstrip().splitlines()[-3:]))
    if not match or not (program.module or "").startswith(_RUN_PROGRAM):
        return None
    name = match[1] or match[2]
    return (
        f"{name} is not among the files of this job: of a file, trainshed run packs only the "
        f"modules that it "
        "imports and the files that a script calls. Run the directory: trainshed run DIRECTORY "
        "--module FILE."
    )


_NOT_FOUND: Final = ": command not found; looked in "
"""What a shim prints of a program that does not exist."""


def on_command(tail: str, _spec: JobSpec, _pool: int) -> str | None:
    """Advise a job whose command is one text in place of a list, or too long."""
    name = next(
        (line.partition(_NOT_FOUND)[0] for line in tail.splitlines() if _NOT_FOUND in line), ""
    )
    if " " in name:
        try:
            words = shlex.split(name)
        except ValueError:  # Quotes without an end.
            words = name.split()
        return (
            "The service treats the whole text as the name of the program. Write a list with one "
            "word per item: "
            f"{json.dumps(words)}"
        )
    if "Argument list too long" in tail:
        return (
            "Linux limits one argument or variable to 128 KiB, and all of a program's together to "
            "about 2 MiB. $(NAME) in arguments is replaced before. Put what is long into a file "
            "of a bucket, below /gcs."
        )
    return None


_TAKEN: Final = re.compile(
    r"EADDRINUSE|Address already in use|address already in use|errno: 98\b|\[Errno 98\]"
)
_LAUNCHER: Final = re.compile(
    r"torch|lightning|accelerate|deepspeed|horovod|jax|TCPStore|rendezvous|init_process_group",
    re.IGNORECASE,
)


def on_address(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Advise a program of several processes that claim one rank."""
    if not _TAKEN.search("\n".join(tail.rstrip().splitlines()[-10:])) or not _LAUNCHER.search(tail):
        return None
    if len(spec.replicas()) == 1:
        return (
            "Two processes listen on the same port, so two act as rank 0. RANK and WORLD_SIZE "
            "count replicas, not processes. Start several processes with torchrun --standalone "
            "--nproc_per_node=N."
        )
    return (
        "Two processes act as rank 0: each replica starts its processes as node 0, or a port is "
        "fixed that another replica of this machine has. Pass the node rank and the job's own "
        "port: torchrun --nnodes=$NNODES --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR "
        "--master_port=$MASTER_PORT."
    )
