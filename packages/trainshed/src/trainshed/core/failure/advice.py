"""Advice on the error in a failed program's last lines. Pure.

`advice` asks one adviser after the other. Each reads what its error says from the lines, and returns a few
sentences on what the user can do; None if the lines report something else.
"""

import re
from typing import Final, NamedTuple

from trainshed.core.catalog import images
from trainshed.core.catalog.tables import table
from trainshed.core.failure.ending_advice import on_memory, on_signal
from trainshed.core.failure.program_advice import (
    on_address,
    on_command,
    on_file_beside,
    on_gs_path,
    on_installer,
    on_library,
    on_variable,
)
from trainshed.core.job import ExitRecord, JobSpec, Program
from trainshed.core.runtime import CONTAINER

ON_TIME_LIMITS: Final = (
    "A program that does not resume from a checkpoint starts over each time and never finishes. Save "
    "checkpoints to gs:// and load the latest one at the start, or ask the cluster's administrator for a "
    "longer time limit."
)
"""What a user can do about time limits of a cluster that end a replica again and again."""


def advice(tail: str, spec: JobSpec, pool: int) -> str | None:
    """Return advice on the error in the last lines of a program of that pool; None if there is none."""
    return next(filter(None, (adviser(tail, spec, pool) for adviser in _ADVISERS)), None)


def advice_on_end(ended: ExitRecord, status: int, spec: JobSpec, pool: int) -> str | None:
    """Return advice on the end of a program of that pool; None if there is none. `status`: as it is
    published."""
    if ended.oom or ended.child_oom:
        return on_memory(spec, pool)
    return advice(ended.tail, spec, pool) or on_signal(
        ended.tail, status, is_signal=ended.signal is not None
    )


# A module is missing. What to do depends on how the job was submitted.

_MISSING_MODULE: Final = re.compile(r"(?:Error|python[\d.]*): No module named '?([A-Za-z_][\w.]*)")
"""Matches a traceback's last line, and the error of an interpreter that is to run a module."""
_SDK_SCRIPT: Final = "aiplatform_custom_trainer_script"
"""The package in which the Vertex SDK puts a script."""
_RUN_PROGRAM: Final = "trainshed_program."
"""The package in which `trainshed run` puts a program, and its dot."""
_FRAMEWORKS: Final = {
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "torch": "pytorch",
    "torchvision": "pytorch",
    "torchaudio": "pytorch",
}
"""What comes with an image rather than as a requirement: module -> framework."""


def _on_module(tail: str, spec: JobSpec, pool: int) -> str | None:
    missing = _MISSING_MODULE.findall(tail)
    if not missing:
        return None
    module: str = missing[-1]
    program = spec.pool(pool).program
    root = module.partition(".")[0]
    if program.module and root == program.module.partition(".")[0]:
        return (
            f"{module} is a part of the job's own package and not in it: its setup.py takes every folder "
            "with packages=find_packages() that has an __init__.py, and data files with package_data."
        )
    if with_framework := _with_framework(_FRAMEWORKS.get(root), program):
        return with_framework
    if "." in module and _FRAMEWORKS.get(root) == program.runtime.family:
        return (
            f"{root} {program.runtime.version} is there and has no module {module}: another version of it "
            "may have."
        )
    distribution, way = _distribution(module), _way(program)
    install = way.install.format(distribution or root)
    if distribution:
        return (
            f"{module} is in the distribution {distribution}, "
            f"which this job's environment does not have: {install}."
        )
    text = f"{way.own.format(root)} If it is in a distribution of the package index: {install}."
    package = (program.module or "").rpartition(".")[0]
    if way is _PACKAGE and package:
        # Programs that were written for Python 2 import their neighbours by their bare names, many public
        # samples among them.
        return (
            f"If {root} is a file of your own in {package}/, import it by its package: `from {package} "
            f"import {root}`. {text}"
        )
    return text


def _distribution(module: str) -> str | None:
    """Return the name of a well-known module's distribution on the package index."""
    root, *below = module.split(".")
    if (root, *below[:1]) == ("google", "cloud"):
        return "-".join((root, *below[:2])).replace("_", "-") if below[1:] else None
    known = table("modules")["distributions"]
    return known.get(".".join((root, *below[:1]))) or known.get(root)


def _with_framework(framework: str | None, program: Program) -> str | None:
    """Return how the job would get an environment with the framework; None if it has one, or needs none."""
    if framework is None or program.runtime.family in (framework, CONTAINER):
        return None
    image = framework if _way(program) is _RUN else images.named_image(framework)
    return (
        f"It comes with an image that holds it: name one, such as {image} (--image of trainshed run; "
        "imageUri, or executorImageUri of a package; masterConfig.imageUri)."
    )


class _Way(NamedTuple):
    """A way in which a program comes here, and what to do on it about a module that is missing."""

    #: How to have a distribution, whose name stands for {}, installed.
    install: str
    #: What to do about a module of one's own, whose name stands for {}.
    own: str


_SDK: Final = _Way(
    'give requirements=["{}"] beside script_path',
    "If {} is a module of your own: script_path takes that one file alone. Put all into it, or submit a "
    "Python package.",
)
_RUN: Final = _Way(
    "name it by --requirements {}, or in a requirements.txt beside the program",
    "If {} is a module of your own: of a file trainshed run takes along only what it imports from beside it. "
    "Run its directory: trainshed run DIRECTORY --module FILE.",
)
_PACKAGE: Final = _Way(
    'add "{}" to install_requires in the setup.py of the job\'s package',
    "If {} is a module of your own, it is not in what was submitted: packages=find_packages() in setup.py "
    "takes every folder that has an __init__.py.",
)
_IN_IMAGE: Final = (
    "If {} is a module of your own, it is not in what was submitted: it has to be in the image, in a bucket "
    "(/gcs/BUCKET on PYTHONPATH), or in a Python package of the job."
)
_CONTAINER: Final = _Way(
    'add a line "RUN pip install {}" to the Dockerfile of the image', _IN_IMAGE
)
_COMMAND: Final = _Way(
    "install it before the program starts, with a command like sh -c 'pip install {} && exec python3 …', or "
    "submit the program as a Python package that requires it",
    _IN_IMAGE,
)


def _way(program: Program) -> _Way:
    module = program.module or ""
    if any(_SDK_SCRIPT in word for word in (module, *program.command, *program.args)):
        return _SDK
    if module.startswith(_RUN_PROGRAM):
        return _RUN
    if module:
        return _PACKAGE
    return _CONTAINER if program.runtime.family == CONTAINER else _COMMAND


# A path was denied. On Vertex a program is root in a container of its own, and may make `/workspace`. Here a
# prebuilt image is the machine's own files, all of which the program may read and none of which it may
# change.

_REFUSED: Final = re.compile(
    r"(?:\[Errno (?:13|30)\] (?:Permission denied|Read-only file system): '(/[^'\n]+)'"
    r"|\bcannot (?:create|touch)(?: (?:directory|regular file))? ['\u2018]?(/[^'\u2019\n:]+)['\u2019]?: "
    r"(?:Permission denied|Read-only file system))"
)
"""Matches a Python traceback, and what shells, mkdir, cp and touch print."""
_WRITABLE: Final = ("/tmp/", "/var/tmp/", "/dev/", "/gcs/")
"""Programs may write below these: something else was wrong."""


def _on_path(tail: str, spec: JobSpec, pool: int) -> str | None:
    refused = [first or second for first, second in _REFUSED.findall(tail)]
    # Many programs try one place after the other, and go on. In an image of one's own all may be changed.
    if not refused or spec.pool(pool).program.runtime.family == CONTAINER:
        return None
    path: str = refused[-1]
    if path not in tail.rstrip().splitlines()[-1] or path.startswith(_WRITABLE):
        return None
    return (
        f"A program in a prebuilt image cannot write {path} here, as it could in a container of its own: it "
        "writes in its working directory, its home, /tmp, /var/tmp and /dev/shm, and in buckets below /gcs. "
        "Name one of these, or run an image of your own, all of whose files its program may change."
    )


# A bucket is not there. On Google's services every program reads the public buckets. Here their names lead to
# this service's own, and what clients say of that is hard to read: `FileNotFoundError: b/some-data/o`.

_BUCKET: Final = r"([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])"
_MISSING_BUCKET: Final = (
    # The storage library, and whatever else shows the service's own answer.
    re.compile(rf"The specified bucket does not exist\. \(bucket: {_BUCKET}\)"),
    # gsutil and gcloud.
    re.compile(rf"404 gs://{_BUCKET} bucket does not exist"),
    re.compile(rf"gs://{_BUCKET} not found: 404"),
    # gcsfs, and so pandas, by the address that it had asked.
    re.compile(rf"FileNotFoundError: b/{_BUCKET}/o$"),
    # Keras and requests.
    re.compile(rf"https?://storage\.googleapis\.com/{_BUCKET}/\S*: 404\b"),
    re.compile(rf"404 Client Error: .*https?://storage\.googleapis\.com/{_BUCKET}/"),
)

_MAKE_BUCKET: Final = (
    "Inside a job, gs:// and storage.googleapis.com are this service's own buckets, and Google's public ones "
    "are not among them: there is no bucket {} here, or not that object in it. Make the bucket (gcloud "
    "storage buckets create gs://{}) and copy the data into it (trainshed buckets cp), or let the operator "
    'show Google\'s own here, by a table of [[buckets]] with store = "gcs".'
)


def _on_bucket(tail: str, _spec: JobSpec, _pool: int) -> str | None:
    lines = tail.rstrip().splitlines()
    for line in reversed(lines):
        for pattern in _MISSING_BUCKET:
            match = pattern.search(line.rstrip())
            # Many programs look into one place after the other, and go on.
            if match and match[1] in lines[-1]:
                return _MAKE_BUCKET.replace("{}", match[1])
    return None


_NOT_BELOW_GCS: Final = re.compile(r"\[Errno 2\] No such file or directory: '/gcs/([^'\n]+)'$")


def _on_directory(tail: str, _spec: JobSpec, _pool: int) -> str | None:
    # An object needs no directory, so that who writes a model to gs:// has never made one.
    match = _NOT_BELOW_GCS.search(tail.rstrip())
    return (
        "A program that writes below /gcs makes the directory first: os.makedirs(os.path.dirname(path), "
        f"exist_ok=True). One that reads finds there what is in gs://{match[1]}."
        if match
        else None
    )


_ADVISERS: Final = (
    _on_module,
    _on_path,
    _on_bucket,
    _on_directory,
    on_gs_path,
    on_variable,
    on_library,
    on_file_beside,
    on_command,
    on_address,
    on_installer,
)
