"""Declares the required fields of the API's objects: nodes, Pods, Kueue's workloads, errors. Other fields are
not decoded."""

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final, Generic, TypeVar

import msgspec

_QUANTITY = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?)([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?")
_DECIMAL: Final[Mapping[str, float]] = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3},
    **{"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
}
_BINARY: Final = {f"{letter}i": 2 ** (10 * n) for n, letter in enumerate("KMGTPE", 1)}
ENDED: Final = ("Succeeded", "Failed")


def parse_quantity(quantity: str | int) -> float:
    """Parse a quantity of Kubernetes. Raises ValueError if the text is not a quantity."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity of Kubernetes, such as 500m or 2Gi")
    number, suffix = float(match[1]), match[2] or ""
    if suffix[:1] in ("e", "E") and suffix != "E" and not suffix.endswith("i"):
        return number * 10.0 ** int(suffix[1:])
    return number * (_BINARY.get(suffix) or _DECIMAL.get(suffix, 1.0))


def whole_quantity(quantity: str | int) -> int:
    """Return a quantity of bytes or devices, rounded up. Raises ValueError if the text is not a quantity."""
    return math.ceil(parse_quantity(quantity))


def cpu_quantity(amount: float) -> str:
    """Format a number of processors in thousandths of a processor, at least one thousandth ("1m")."""
    return f"{max(1, math.ceil(amount * 1000))}m"


T = TypeVar("T")

_Quantities = Mapping[str, str | int]


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None
    creation_timestamp: datetime.datetime | None = None
    #: Time of the request to delete the object; None = no request.
    deletion_timestamp: datetime.datetime | None = None
    #: In a list: token of the next page; "" on the last page.
    continue_: str = msgspec.field(name="continue", default="")


class Requirements(msgspec.Struct, frozen=True):
    requests: _Quantities | None = None


class Container(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    #: `Always` marks a sidecar: an init container that continues to run.
    restart_policy: str = ""
    resources: Requirements | None = None

    @property
    def requests(self) -> Iterable[tuple[str, float]]:
        wanted = (self.resources.requests if self.resources else None) or {}
        return ((key, parse_quantity(value)) for key, value in wanted.items())


class SchedulingGate(msgspec.Struct, frozen=True):
    pass


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    #: None only in bookmarks, which are events of a watch that contain only a version.
    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    overhead: _Quantities | None = None
    #: Gates that other controllers must remove before Kubernetes schedules the Pod.
    scheduling_gates: tuple[SchedulingGate, ...] | None = None


class Condition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class Waiting(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, frozen=True):
    pass


class Terminated(msgspec.Struct, frozen=True, rename="camel"):
    exit_code: int = 0
    reason: str = ""
    message: str = ""


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    name: str = ""
    #: The image as specified by the Pod.
    image: str = ""
    state: ContainerState = ContainerState()


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(msgspec.Struct, frozen=True, dict=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @cached_property
    def requests(self) -> Mapping[str, float]:
        """The resources that the scheduler counts for this Pod: the sum over its containers and sidecars, or
        the resources of its largest init container if these are larger.

        The result is cached, because every report to the service's scheduler needs the resources of all Pods.
        """
        before, totals = self.spec.init_containers or (), dict[str, float]()
        sidecars = (container for container in before if container.restart_policy == "Always")
        for container in (*(self.spec.containers or ()), *sidecars):
            for key, amount in container.requests:
                totals[key] = totals.get(key, 0.0) + amount
        for container in before:
            for key, amount in container.requests:
                totals[key] = max(totals.get(key, 0.0), amount)
        for key, value in (self.spec.overhead or {}).items():
            totals[key] = totals.get(key, 0.0) + parse_quantity(value)
        return totals

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @cached_property
    def is_over(self) -> bool:
        if self.is_leaving and self.spec.scheduling_gates:
            # The Pod was deleted before it was scheduled, so it never runs. Its object may exist until the
            # controller that set the gates releases the Pod.
            return True
        if any(known.reason == "DeletionByPodGC" for known in self.status.conditions or ()):
            # Kubernetes set the phase "Failed" because the node was deleted. The phase does not prove that
            # the container has ended, because the node has not reported it. Ignore the phase.
            return self.termination is not None
        return self.status.phase in ENDED or self.termination is not None

    @property
    def is_leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def is_running(self) -> bool:
        return not self.is_over and any(status.state.running for status in self._statuses)

    @property
    def termination(self) -> Terminated | None:
        """The end of the Pod's container, or of an init container that failed. None = neither has ended."""
        before = (status.state.terminated for status in self._before)
        failed = (ended for ended in before if ended and ended.exit_code)
        own = (status.state.terminated for status in self._statuses if status.state.terminated)
        return next(iter((*failed, *own)), None)

    @property
    def waiting(self) -> Waiting | None:
        """Why the first waiting container or init container of the Pod does not run yet; None = no container
        waits."""
        status = self._waiting_one
        return status.state.waiting if status else None

    @property
    def waiting_image(self) -> str:
        """The image of the first waiting container."""
        status = self._waiting_one
        return status.image if status else ""

    @property
    def scheduling_failure(self) -> Condition | None:
        """The condition with the scheduler's reason for finding no node; None = the Pod has no such
        condition."""
        conditions = self.status.conditions or ()
        return next(
            (
                condition
                for condition in conditions
                if condition.type == "PodScheduled" and condition.status == "False"
            ),
            None,
        )

    @property
    def _waiting_one(self) -> ContainerStatus | None:
        # The containers start in order, so the first waiting container delays all later containers. Return
        # its state.
        return next((status for status in (*self._before, *self._statuses) if status.state.waiting), None)

    @property
    def _before(self) -> tuple[ContainerStatus, ...]:
        return self.status.init_container_statuses or ()

    @property
    def _statuses(self) -> tuple[ContainerStatus, ...]:
        return self.status.container_statuses or ()


class Taint(msgspec.Struct, frozen=True):
    key: str
    effect: str
    value: str = ""


class NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(msgspec.Struct, frozen=True):
    allocatable: _Quantities | None = None
    conditions: tuple[Condition, ...] | None = None


class ClusterNode(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def key(self) -> str:
        return self.metadata.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def taints(self) -> tuple[Taint, ...]:
        return self.spec.taints or ()


class WorkloadSpec(msgspec.Struct, frozen=True, rename="camel"):
    queue_name: str = ""
    priority: int = 0


class AdmissionCheck(msgspec.Struct, frozen=True):
    name: str = ""
    #: Pending, Ready, Retry or Rejected.
    state: str = ""
    message: str = ""


class WorkloadStatus(msgspec.Struct, frozen=True, rename="camel"):
    conditions: tuple[Condition, ...] | None = None
    admission_checks: tuple[AdmissionCheck, ...] | None = None


class Workload(msgspec.Struct, frozen=True):
    """A workload of Kueue. Kueue admits all its Pods together."""

    metadata: Metadata
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ServedVersion(msgspec.Struct, frozen=True):
    version: str


class ApiGroup(msgspec.Struct, frozen=True, rename="camel"):
    """An API group of the server, with its versions."""

    preferred_version: ServedVersion


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of the API's response to a request for a list."""

    metadata: Metadata
    items: tuple[T, ...]


class Version(msgspec.Struct, frozen=True, rename="camel"):
    """The API server's version."""

    git_version: str = ""


class Allowed(msgspec.Struct, frozen=True):
    allowed: bool = False


class Review(msgspec.Struct, frozen=True):
    """The result of an access review: whether an action is allowed."""

    status: Allowed = Allowed()


class Status(msgspec.Struct, frozen=True):
    """The API's response to a request that failed."""

    message: str = ""
    reason: str = ""
    code: int = 0


class WatchEvent(msgspec.Struct, frozen=True):
    #: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.
    type: str
    #: The changed or deleted object; for ERROR, a `Status`.
    object: msgspec.Raw
