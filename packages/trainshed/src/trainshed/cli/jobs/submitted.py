"""Describes a job's specification as text, from the public JSON of either API. Pure.

Fields that it does not know are left out. Values of environment variables are not shown, as they may be
secret.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trainshed.cli.text.printable import one_line
from trainshed.cli.text.tables import first_few

_ROLES = ("master", "worker", "parameterServer", "evaluator")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class PoolView:
    """The specification of a pool's replicas."""

    name: str
    #: Their number.
    replicas: int
    machine: str
    #: Image or runtime version; "" = the service's default.
    runs: str
    #: Module or command, with its arguments.
    command: str
    packages: tuple[str, ...] = ()
    #: Names of their environment variables.
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubmittedView:
    """The specification of a job."""

    pools: tuple[PoolView, ...]
    #: gs:// URI of its output directory; "" = none.
    output: str = ""
    #: Its labels, each as `KEY=VALUE`.
    labels: tuple[str, ...] = ()
    #: What else was specified, as texts: limits, shells, service account.
    options: tuple[str, ...] = ()

    @staticmethod
    def of(job: Mapping[str, Any]) -> "SubmittedView":
        """Return the view of a job's own JSON, as its create method takes it and its get method answers. It
        has no pools for a pipeline, or for what is no job."""
        labels = tuple(f"{key}={value}" for key, value in _mapping(job.get("labels")).items())
        if "trainingInput" in job:
            return _of_ml(_mapping(job["trainingInput"]), labels)
        spec = _mapping(job.get("jobSpec") or job.get("trialJobSpec"))
        pools = tuple(
            _pool(f"workerpool{position}", pool)
            for position, pool in enumerate(_list(spec.get("workerPoolSpecs")))
            if pool
        )
        output = _text(_mapping(spec.get("baseOutputDirectory")).get("outputUriPrefix"))
        return SubmittedView(pools, output, labels, tuple(_options(spec)))

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield (label, value) of each fact that describes it. Values can be empty or have several lines."""
        if not self.pools:
            return
        for label, values in (
            ("Runs", [pool.runs or "the default runtime" for pool in self.pools]),
            ("Command", [pool.command for pool in self.pools]),
            ("Packages", [first_few(pool.packages, _SHOWN) for pool in self.pools]),
            ("Variables", [first_few(pool.env, _SHOWN) for pool in self.pools]),
        ):
            yield label, "\n".join(self._by_pool(values))
        yield "Machines", "\n".join(self._machines())
        yield "Output", self.output
        yield "Labels", ", ".join(self.labels)
        yield "Options", ", ".join(self.options)

    def _by_pool(self, values: list[str]) -> list[str]:
        """Return the value once if it is the same for all pools, else each after its pool's name."""
        if len(set(values)) == 1:
            return values[:1]
        return [
            f"{pool.name}: {value}" for pool, value in zip(self.pools, values, strict=True) if value
        ]

    def _machines(self) -> Iterator[str]:
        for pool in self.pools:
            name = f"  ({pool.name})" if len(self.pools) > 1 else ""
            yield f"{pool.replicas} × {pool.machine}{name}"


def _pool(name: str, pool: dict[str, Any]) -> PoolView:
    package, container = (
        _mapping(pool.get("pythonPackageSpec")),
        _mapping(pool.get("containerSpec")),
    )
    machine = _mapping(pool.get("machineSpec"))
    program = package or container
    words = (
        [f"python3 -m {_text(package.get('pythonModule'))}"]
        if package
        else [shlex.join(_texts(container.get("command")))]
    )
    return PoolView(
        name=name,
        replicas=_number(pool.get("replicaCount", 1)),
        machine=_machine(
            machine.get("machineType"),
            machine.get("acceleratorCount"),
            machine.get("acceleratorType"),
        ),
        runs=_text(package.get("executorImageUri") or container.get("imageUri")),
        command=_words(words, program.get("args")),
        packages=tuple(_texts(package.get("packageUris"))),
        env=tuple(_text(entry.get("name")) for entry in _list(program.get("env"))),
    )


def _of_ml(training: dict[str, Any], labels: tuple[str, ...]) -> SubmittedView:
    version = _text(training.get("runtimeVersion"))
    runtime = f"runtime version {version}" if version else ""
    if python := _text(training.get("pythonVersion")):
        runtime = f"{runtime or 'a runtime'}, Python {python}"
    module = _text(training.get("pythonModule"))
    command = _words([f"python3 -m {module}"] if module else [], training.get("args"))
    pools: list[PoolView] = []
    tier = _text(training.get("scaleTier")) or "BASIC"
    for role in _ROLES:
        config = _mapping(training.get(f"{role}Config"))
        machine = _text(training.get(f"{role}Type"))
        count = 1 if role == "master" else _number(training.get(f"{role}Count", 0))
        if role != "master" and not count:
            continue
        accelerator = _mapping(config.get("acceleratorConfig"))
        container = shlex.join(_texts(config.get("containerCommand")))
        pools.append(
            PoolView(
                name={"parameterServer": "ps"}.get(role, role),
                replicas=count,
                machine=_machine(
                    machine or f"scale tier {tier}",
                    accelerator.get("count"),
                    accelerator.get("type"),
                ),
                runs=_text(config.get("imageUri")) or runtime,
                command=_words([container], config.get("containerArgs")) or command,
                packages=tuple(_texts(training.get("packageUris"))),
            )
        )
    options: list[str] = []
    if account := _text(training.get("serviceAccount")):
        options.append(f"service account {account}")
    if limit := _text(_mapping(training.get("scheduling")).get("maxRunningTime")):
        options.append(f"at most {limit}")
    return SubmittedView(tuple(pools), _text(training.get("jobDir")), labels, tuple(options))


def _options(spec: Mapping[str, Any]) -> Iterator[str]:
    scheduling = _mapping(spec.get("scheduling"))
    if limit := _text(scheduling.get("timeout")):
        yield f"at most {limit}"
    if strategy := _text(scheduling.get("strategy")):
        yield strategy.lower()
    if scheduling.get("restartJobOnWorkerRestart"):
        yield "restarts as a whole"
    if scheduling.get("disableRetries"):
        yield "no retries"
    if account := _text(spec.get("serviceAccount")):
        yield f"service account {account}"
    if spec.get("enableWebAccess"):
        yield "shells"


def _machine(kind: Any, count: Any, accelerator: Any) -> str:
    devices = f" with {_number(count)} × {_text(accelerator)}" if accelerator and count else ""
    return f"{_text(kind) or 'any machine'}{devices}"


def _words(begin: list[str], arguments: Any) -> str:
    return " ".join(filter(None, [*begin, shlex.join(_texts(arguments))]))


def _mapping(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[dict[str, Any]]:
    return [_mapping(item) for item in cast(list[Any], value)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [_text(item) for item in cast(list[Any], value)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return "" if value is None else one_line(str(value))


def _number(value: Any) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else 0
