"""Decides where Pods of a machine type go on a cluster (labels, tolerations, runtime and priority class,
device plugins) and which nodes that leads to. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Acceptance, MachineWanted, Route
from trainshed_cluster.kubernetes.objects import ClusterNode, Taint
from trainshed_cluster.kubernetes.settings import (
    Accelerator,
    KubernetesSettings,
    MachineRoute,
    Toleration,
)

NODES_OWN = "node.kubernetes.io/"
"""How taints begin that tell how a node stands: they keep nothing away for good."""
OUT_OF_SERVICE = f"{NODES_OWN}out-of-service"
"""By this taint an operator says that the node is off, and that nothing of it runs any more."""
_KEEPS_AWAY = ("NoSchedule", "NoExecute")


class KubernetesRoute(Struct, frozen=True):
    """The scheduling settings of the Pods of some machine types."""

    route: Route
    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    runtime_class: str
    priority_class: str

    def leads_to(self, node: ClusterNode) -> bool:
        return has_labels(node, self.node_selector) and not any(
            taint.effect in _KEEPS_AWAY
            and not taint.key.startswith(NODES_OWN)
            and not any(tolerates(toleration, taint) for toleration in self.tolerations)
            for taint in node.taints
        )


class Routes:
    """The routes of a cluster: the first match wins, and the last one is for every machine."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._all = tuple(
            _resolved(route, settings) for route in (*settings.machines, MachineRoute())
        )
        self._routes = tuple(route.route for route in self._all)
        self._accelerators = settings.accelerators

    def of(self, machine: MachineWanted) -> KubernetesRoute:
        return next(resolved for resolved in self._all if resolved.route.is_for(machine))

    def acceptance(self, node: ClusterNode) -> Acceptance:
        way = frozenset(at for at, route in enumerate(self._all) if route.leads_to(node))
        return Acceptance(self._routes, way)

    def accelerator(self, public: str) -> Accelerator | None:
        """Return the cluster's name of a public accelerator type; None = none is configured."""
        return self._accelerators.get(public)

    @property
    def accelerators(self) -> Sequence[str]:
        """All public accelerator types that the operator has configured."""
        return tuple(self._accelerators)

    def on(self, node: ClusterNode) -> tuple[tuple[str, str], ...]:
        """Return (public type, resource) pairs of the devices that a node may have."""
        return tuple(
            (public, accelerator.resource)
            for public, accelerator in self._accelerators.items()
            if has_labels(node, accelerator.node_selector)
        )


def has_labels(node: ClusterNode, selector: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in selector.items())


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether a toleration covers a taint, by the scheduler's rules."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def _resolved(machine: MachineRoute, settings: KubernetesSettings) -> KubernetesRoute:
    """Return a route, with the plain settings where its table sets none."""
    selector = settings.node_selector if machine.node_selector is None else machine.node_selector
    tolerations = settings.tolerations if machine.tolerations is None else machine.tolerations
    labels = ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))
    kind = f"nodes with {labels}" if labels else None
    return KubernetesRoute(
        Route(tuple(machine.types), tuple(machine.accelerators), kind),
        dict(selector),
        tuple(tolerations),
        settings.runtime_class if machine.runtime_class is None else machine.runtime_class,
        settings.priority_class if machine.priority_class is None else machine.priority_class,
    )
