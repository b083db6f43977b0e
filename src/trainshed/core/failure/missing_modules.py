"""Advice about a program that failed because a module is missing. Pure: takes the log's last lines.

The advice depends on how the job was submitted: requirements are named in different places for a package of
one's own, a script that the Vertex SDK has packed, a command in a prebuilt image, and an image of one's own.
"""

import re
from typing import Final

from trainshed.core.catalog import runtime_versions
from trainshed.core.catalog.images import listed_images, parse_prebuilt
from trainshed.core.catalog.tables import table
from trainshed.core.job.spec import JobSpec, Program
from trainshed.core.names import Api
from trainshed.core.runtime import CONTAINER

_MISSING = re.compile(r"(?:Error|python[\d.]*): No module named '?([A-Za-z_][\w.]*)")
"""Matches a traceback's last line, and the error of an interpreter that is to run a module."""
_SDK_SCRIPT: Final = "aiplatform_custom_trainer_script"
"""The package in which the Vertex SDK puts a script."""
_IMAGES: Final = "us-docker.pkg.dev/vertex-ai/training/"

_FRAMEWORKS: Final = {
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "torch": "pytorch",
    "torchvision": "pytorch",
    "torchaudio": "pytorch",
}
"""What comes with an image or a runtime version rather than as a requirement: module -> framework."""


def missing_module(tail: str) -> str:
    """Return the module that these lines report as missing, the last one of several; "" if there is none."""
    found = _MISSING.findall(tail)
    return found[-1] if found else ""


def advice(module: str, spec: JobSpec, position: int) -> str:
    """Return what the user can do about `module` missing in the pool at `position`: a sentence or two."""
    program = spec.pool(position).program
    root = module.partition(".")[0]
    if program.module and root == program.module.partition(".")[0]:
        return (
            f"{module} is a part of the job's own package and not in it: its setup.py takes every folder "
            "with packages=find_packages() that has an __init__.py, and data files with package_data."
        )
    if told := _with_framework(_FRAMEWORKS.get(root, ""), spec, program):
        return told
    if "." in module and _FRAMEWORKS.get(root) == program.runtime.family:
        return (
            f"{root} {program.runtime.version} is there and has no module {module}: another version of it "
            "may have."
        )
    known = distribution(module)
    where = _where(known or root, program)
    if known:
        return (
            f"{module} is in the distribution {known}, "
            f"which this job's environment does not have: {where}."
        )
    return f"{_if_own(root, program)} If it is in a distribution of the package index: {where}."


def distribution(module: str) -> str:
    """Return the name of a well-known module's distribution on the package index; "" if it is not known."""
    root, *below = module.split(".")
    if (root, *below[:1]) == ("google", "cloud"):
        return "-".join((root, *below[:2])).replace("_", "-") if below[1:] else ""
    known = table("modules")["distributions"]
    return known.get(".".join((root, *below[:1]))) or known.get(root, "")


def _with_framework(framework: str, spec: JobSpec, program: Program) -> str:
    """Return how the job would get an environment with the framework; "" if it has one, or needs none."""
    if not framework or program.runtime.family in (framework, CONTAINER):
        return ""
    title = {"tensorflow": "TensorFlow", "pytorch": "PyTorch"}[framework]
    if spec.api is Api.ML and not program.image_uri and framework == "tensorflow":
        version = runtime_versions.newest()
        python = runtime_versions.default_python(version)
        return (
            f"{title} comes with a runtime version, and this job "
            f"{'names ' + spec.runtime_version if spec.runtime_version else 'names none'}: submit it with "
            f"--runtime-version={version} --python-version={python} (trainingInput.runtimeVersion, "
            "pythonVersion)."
        )
    image = next(name for name in listed_images() if _framework(name) == framework)
    flag = {
        Api.ML: f"--master-image-uri={_IMAGES}{image}:latest (masterConfig.imageUri)",
        Api.VERTEX: f"{_IMAGES}{image}:latest (imageUri, or executorImageUri of a package)",
    }[spec.api]
    return f"{title} comes with an image that holds it: name one, such as {flag}."


def _framework(image: str) -> str:
    found = parse_prebuilt(f"{_IMAGES}{image}:latest")
    return found.framework if found and found.device in ("cpu", "gpu") else ""


def _is_sdk_script(program: Program) -> bool:
    return _SDK_SCRIPT in " ".join((program.module or "", *program.command, *program.args))


def _where(requirement: str, program: Program) -> str:
    if _is_sdk_script(program):
        return f'give requirements=["{requirement}"] beside script_path'
    if program.module:
        return f'add "{requirement}" to install_requires in the setup.py of the job\'s package'
    if program.runtime.family == CONTAINER:
        return f'add a line "RUN pip install {requirement}" to the Dockerfile of the image'
    return (
        f"install it before the program starts, with a command like sh -c 'pip install {requirement} && exec "
        "python3 …', or submit the program as a Python package that requires it"
    )


def _if_own(module: str, program: Program) -> str:
    """Return what to do if `module` is the user's own."""
    if _is_sdk_script(program):
        return (
            f"If {module} is a module of your own: script_path takes that one file alone. Put all into it, "
            "or submit a Python package."
        )
    missing = f"If {module} is a module of your own, it is not in what was submitted: "
    package = (program.module or "").rpartition(".")[0]
    if program.module:
        missing += (
            "packages=find_packages() in setup.py takes every folder that has an __init__.py."
        )
        # Programs that were written for Python 2 import their neighbours by their bare names, many public
        # samples among them.
        neighbour = (
            f"If {module} is a file of your own in {package}/, import it by its package: `from {package} "
            f"import {module}`. "
        )
        return f"{neighbour if package else ''}{missing}"
    return (
        f"{missing}it has to be in the image, in a bucket (/gcs/BUCKET on PYTHONPATH), or in a Python "
        "package of the job."
    )
