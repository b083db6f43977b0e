"""The request of a local run, checked as far as the disk allows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trainshed.cli.projects import is_project
from trainshed.core.secrets import SecretRef, name_fault, value_fault


class NotRun(Exception):
    """The program cannot be run. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LocalRunRequest:
    """What one local run runs, and in what environment."""

    #: A container image's URI, prebuilt or not, or `FAMILY[=VERSION]` of a runtime.
    image: str
    #: The program's directory, of which a part is copied into the working directory.
    directory: Path
    #: A file of the directory that is run, "" = a module, or what the image runs by itself.
    script: str = ""
    #: A module that is run, "" = the script.
    module: str = ""
    arguments: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    extra_packages: tuple[Path, ...] = ()
    extra_dirs: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    #: Values of the secrets that variables refer to.
    secrets: Mapping[SecretRef, str] = field(default_factory=dict[SecretRef, str], repr=False)
    machine_type: str = "n1-standard-4"
    gpu: bool = False
    #: `gs://` directory for the program's output, "" = none.
    output: str = ""
    service_account: str = ""
    #: Whether to keep the program's files when it has ended.
    keep: bool = False

    @property
    def entry(self) -> str:
        """The file or package that is run, as a path in the directory; "" = none."""
        return self.script or self.module.replace(".", "/")


def check(request: LocalRunRequest, private: tuple[Path, ...]) -> None:
    """Raise NotRun with everything that is wrong about files. `private`: directories that cannot be a
    program's."""
    faults = list(_faults(request, private))
    if faults:
        raise NotRun("\n".join(faults))


def _faults(request: LocalRunRequest, private: tuple[Path, ...]) -> list[str]:
    directory = request.directory
    if not directory.is_dir():
        return [f"--local-package-path: {directory} is no directory."]
    faults: list[str] = []
    if not request.entry and (request.extra_dirs or request.requirements or request.extra_packages):
        faults.append(
            "--extra-dirs, --extra-packages and --requirements go with --script or --python-module: "
            "without one the image runs as it is."
        )
    if request.entry and directory in private:
        faults.append(
            f"--local-package-path: {directory} holds more than a program. Put the program into a "
            "directory of its own and name that, or run this there."
        )
    if request.script and not (directory / request.script).is_file():
        faults.append(f"--script: there is no file {request.script} in {directory}.")
    if request.module and not _is_module(directory, request.module):
        faults.append(
            f"--python-module: there is no module {request.module} in {directory}; name the directory that "
            "holds its package by --local-package-path."
        )
    faults += [
        f"--extra-dirs: there is no directory {name} in {directory}."
        for name in request.extra_dirs
        if not (directory / name).is_dir()
    ]
    faults += [
        f"--{option}: {name} leads out of {directory}; name what lies in it."
        for option, names in (("script", [request.script]), ("extra-dirs", request.extra_dirs))
        for name in names
        if name and (PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts)
    ]
    return faults + [
        f"--extra-packages: there is no file {path}."
        for path in request.extra_packages
        if not path.is_file()
    ]


def _is_module(directory: Path, module: str) -> bool:
    # A project may keep its packages in src/, and build tools know further layouts.
    places = (directory, directory / "src")
    path = module.replace(".", "/")
    there = any(
        (place / f"{path}.py").is_file() or (place / path / "__main__.py").is_file()
        for place in places
    )
    return there or is_project(directory)


def read_env(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the variables, each written as `NAME=VALUE`. Raises NotRun."""
    wrong = [text.partition("=")[0] for text in texts if not text.partition("=")[1]]
    if wrong or any(text.startswith("=") for text in texts):
        raise NotRun(
            "--env: write NAME=VALUE" + (f"; {', '.join(wrong)} has no value." if wrong else ".")
        )
    return tuple((text.partition("=")[0], text.partition("=")[2]) for text in texts)


def read_secrets(texts: tuple[str, ...], environ: Mapping[str, str]) -> dict[SecretRef, str]:
    """Return the secrets, each written as `NAME=VARIABLE`, with the value of that environment variable: a
    command line can be read by everybody. Raises NotRun."""
    secrets: dict[SecretRef, str] = {}
    wrong: list[str] = []
    for text in texts:
        name, _, variable = text.partition("=")
        fault = name_fault(name)
        if not fault and not variable:
            fault = (
                f"{name} needs the name of the environment variable that holds its value: "
                f"{name}=VARIABLE."
            )
        if not fault and variable not in environ:
            # Does not show the text after "=", which may be the secret itself.
            fault = f"the environment variable that is to hold the value of {name} is not set."
        if not fault:
            secrets[SecretRef(name)] = environ[variable]
            fault = value_fault(environ[variable])
            fault = fault and f"{name}: {fault}"
        if fault:
            wrong.append(f"--secret: {fault}")
    if wrong:
        raise NotRun("\n".join(wrong))
    return secrets
