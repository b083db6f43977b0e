"""The runtime of an image, and what a container runs by itself, without a command (spec/program#arguments,
facts/packaging#images)."""

from msgspec.structs import replace

from trainshed.core.catalog import images
from trainshed.core.job import Program
from trainshed.core.requests import Section
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeCatalog, RuntimeChoice
from trainshed.core.specs import syntax

_MODULE, _PACKAGES = "--module_name", "--package_uris"


UNKNOWN_RUNTIME = RuntimeChoice("", "", "")
"""The runtime of a program whose image or version was refused."""


def read_runtime(
    section: Section, field: str, image_uri: str, runtimes: RuntimeCatalog, elsewhere: str = ""
) -> RuntimeChoice:
    """Return the runtime that stands in for the image in `field`. `elsewhere`: why that may not be the
    reduction server's; "" = it may. What is wrong is reported to the section's faults."""
    if not images.is_reference(image_uri):
        section.fault(field, f"{image_uri!r} {images.NO_REFERENCE}")
    elif elsewhere and images.is_reduction_server(image_uri):
        section.fault(field, elsewhere)
    else:
        answer = runtimes.for_image(image_uri)
        if isinstance(answer, RuntimeChoice):
            return answer
        section.fault(field, answer.reason)
    return UNKNOWN_RUNTIME


def needs_command(runtime: RuntimeChoice, image_uri: str) -> bool:
    """Whether a container of that image runs only what the job says: an environment stands in for the image,
    and has no entry point (a reducer's has one). Where the runtime is not known, because it was refused, the
    image's name decides."""
    if not runtime.family:
        return images.parse_prebuilt(image_uri) is not None
    return runtime.family not in (CONTAINER, REDUCERS)


def names_package(program: Program) -> bool:
    """Whether the arguments are meant for the program that the published training images run by themselves.
    It installs the packages of `--package_uris` and runs the module of `--module_name` with all other
    arguments."""
    return not program.command and bool(_taken(program.args, _MODULE)[0])


def read_package(program: Program, section: Section, field: str) -> Program:
    """Return the package job that such arguments, given in `field`, describe. What is wrong is reported to
    the section's faults."""
    modules, others = _taken(program.args, _MODULE)
    uris, others = _taken(others, _PACKAGES)
    packages = tuple(uri for text in uris for uri in text.split(",") if uri)
    if fault := syntax.module_fault(modules[-1]):
        section.fault(field, f"{_MODULE}: {fault}")
    for fault in filter(None, map(syntax.package_fault, packages)):
        section.fault(field, f"{_PACKAGES}: {fault}")
    if not packages:
        section.fault(field, f"{_PACKAGES}: At least one Python package must be given.")
    return replace(program, module=modules[-1], package_uris=packages, args=others)


def _taken(args: tuple[str, ...], name: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the values of an option, given as `NAME=VALUE` or as two arguments, and all other arguments."""
    values: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for argument in rest:
        if argument.startswith(f"{name}="):
            values.append(argument.removeprefix(f"{name}="))
        elif argument == name:
            values.append(next(rest, ""))
        else:
            others.append(argument)
    return values, tuple(others)
