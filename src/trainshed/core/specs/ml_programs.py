"""Programs of an `ml` v1 job: packages on a runtime version, or containers (spec/submit#ml-jobs,
spec/submit#defaults, facts/packaging)."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core import reducers
from trainshed.core.catalog import images, runtime_versions
from trainshed.core.cluster import PS_POOL
from trainshed.core.job.spec import Program
from trainshed.core.requests import Section
from trainshed.core.runtime import RuntimeCatalog, RuntimeChoice, RuntimeRefusal
from trainshed.core.specs import syntax
from trainshed.core.specs.entry_points import names_package, needs_command, read_package
from trainshed.core.specs.ml_pools import ROLES, Role

_UNKNOWN_RUNTIME = RuntimeChoice("", "", "")
_CONTAINER_FIELDS = ("imageUri", "containerCommand", "containerArgs")


@dataclass(frozen=True, slots=True)
class Programs:
    """What each role runs, by pool position, and the runtime version as given ("" = none)."""

    by_position: dict[int, Program]
    runtime_version: str


def read_programs(training: Section, roles: Sequence[Role], runtimes: RuntimeCatalog) -> Programs:
    """The programs of `roles`. What is wrong is reported to the section's faults."""
    version = training.text("runtimeVersion")
    image = training.section("masterConfig").text("imageUri")
    if version and image:
        training.fault(
            "runtimeVersion",
            "Only one of runtime_version and master_config.image_uri can be set; leave one out.",
        )
    if image:
        return Programs(_containers(training, image, roles, runtimes), "")
    return Programs(
        dict.fromkeys((r.position for r in roles), _package(training, runtimes)), version
    )


def _package(training: Section, runtimes: RuntimeCatalog) -> Program:
    """Every role runs the same package job on the runtime version, or on the default runtime."""
    version, python = training.text("runtimeVersion"), training.text("pythonVersion")
    runtime = _UNKNOWN_RUNTIME
    if fault := runtime_versions.pair_fault(version, python):
        known = version in runtime_versions.runtime_versions() or not version
        training.fault("pythonVersion" if known else "runtimeVersion", fault)
    else:
        if version and not python:
            python = runtime_versions.default_python(version)
        answer = runtimes.for_runtime_version(version, python)
        if isinstance(answer, RuntimeRefusal):
            training.fault("runtimeVersion", answer.reason)
        else:
            runtime = answer
    for role in ROLES:
        config = training.section(role.config_field)
        for field in _CONTAINER_FIELDS:
            if config.is_set(field):
                config.fault(
                    field,
                    "Containers need master_config.image_uri, which takes the place of a runtime.",
                )
    packages = syntax.read_packages(training)
    module = _module(training)
    return Program(
        runtime=runtime,
        package_uris=packages,
        module=module,
        args=syntax.read_arguments(training, "args"),
    )


def _containers(
    training: Section, master_image: str, roles: Sequence[Role], runtimes: RuntimeCatalog
) -> dict[int, Program]:
    if training.text("pythonVersion"):
        training.fault(
            "pythonVersion", "A Python version goes with a runtime version, not with an image."
        )
    found: dict[int, Program] = {}
    for role in roles:
        config = training.section(role.config_field)
        # Roles without an image of their own run the master's (facts/program#arguments).
        image = config.text("imageUri") or master_image
        if images.is_reduction_server(image) and role.position != PS_POOL:
            config.fault("imageUri", reducers.ELSEWHERE)
            found[role.position] = Program(_UNKNOWN_RUNTIME, image)
        else:
            found[role.position] = _container(training, config, image, runtimes)
    _check_tpu_version(training)
    return found


def _container(training: Section, config: Section, image: str, runtimes: RuntimeCatalog) -> Program:
    runtime = _UNKNOWN_RUNTIME
    if not images.is_reference(image):
        config.fault("imageUri", f"{image!r} is not an image name such as HOST/PROJECT/NAME:TAG.")
    else:
        answer = runtimes.for_image(image)
        if isinstance(answer, RuntimeRefusal):
            config.fault("imageUri", answer.reason)
        else:
            runtime = answer
    command = syntax.read_arguments(config, "containerCommand")
    container_args = syntax.read_arguments(config, "containerArgs")
    args = syntax.read_arguments(training, "args")
    if args and (command or container_args):
        field = "containerArgs" if container_args else "containerCommand"
        config.fault(field, "container_command and container_args cannot be combined with args.")
    if reducers.are_ours(runtime):
        return reducers.program(runtime, image, (), given=bool(command or container_args))
    program = Program(
        runtime=runtime, image_uri=image, command=command, args=container_args or args
    )
    if needs_command(runtime, image) and names_package(program):
        field = "containerArgs" if container_args else "args"
        return read_package(program, config if container_args else training, field)
    packaged = training.is_set("packageUris") or training.is_set("pythonModule")
    if packaged and images.parse_prebuilt(image) is not None:
        return Program(
            runtime=runtime,
            image_uri=image,
            package_uris=syntax.read_packages(training),
            module=_module(training),
            args=args,
        )
    if packaged:
        training.fault(
            "packageUris" if training.is_set("packageUris") else "pythonModule",
            "Python packages run on a runtime version or a prebuilt training image; a custom image runs "
            "its own program.",
        )
    elif needs_command(runtime, image) and not command:
        config.fault(
            "containerCommand",
            "An environment of the service stands for this image, and needs a program: give a "
            "container_command, or for a prebuilt image package_uris and python_module.",
        )
    return program


def _module(training: Section) -> str:
    module = training.text("pythonModule")
    if fault := syntax.module_fault(module):
        training.fault("pythonModule", fault)
    return module


def _check_tpu_version(training: Section) -> None:
    """facts/program#arguments: a TPU worker of a container job needs its TensorFlow version."""
    config = training.section("workerConfig")
    if training.text("workerType") == "cloud_tpu" and not config.text("tpuTfVersion"):
        config.fault(
            "tpuTfVersion", "A cloud_tpu worker of a container job needs its TensorFlow version."
        )
