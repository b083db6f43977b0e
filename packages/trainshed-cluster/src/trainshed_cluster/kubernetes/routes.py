"""Maps machine types to options of Pods, such as labels, tolerations, classes and device plugins. Also maps
machine types to the nodes that these options select. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.core.capacity import Acceptance, MachineWanted, Route
from trainshed_cluster.kubernetes.objects import ClusterNode, Taint
from trainshed_cluster.kubernetes.settings import Accelerator, KubernetesSettings, MachineRoute, Toleration

CONDITION_PREFIX = "node.kubernetes.io/"
"""Prefix of taints that Kubernetes sets for a node's temporary condition."""
OUT_OF_SERVICE = f"{CONDITION_PREFIX}out-of-service"
"""Taint by which an operator declares that the node is off and runs nothing."""
_BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


class KubernetesRoute(Struct, frozen=True):
    """The options of the Pods of some machine types."""

    route: Route
    node_selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    runtime_class: str
    priority_class: str

    def leads_to(self, node: ClusterNode) -> bool:
        return has_labels(node, self.node_selector) and not any(
            taint.effect in _BLOCKING_EFFECTS
            and not taint.key.startswith(CONDITION_PREFIX)
            and not any(tolerates(toleration, taint) for toleration in self.tolerations)
            for taint in node.taints
        )


class Routes:
    """The routes of a cluster: the options of Pods by machine type. The first route that matches a machine
    type applies. The last route matches every type."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._all = tuple(_resolve(route, settings) for route in (*settings.machines, MachineRoute()))
        self._routes = tuple(route.route for route in self._all)
        self._accelerators = settings.accelerators

    def of(self, machine: MachineWanted) -> KubernetesRoute:
        return next(resolved for resolved in self._all if resolved.route.is_for(machine))

    def acceptance(self, node: ClusterNode) -> Acceptance:
        way = frozenset(at for at, route in enumerate(self._all) if route.leads_to(node))
        return Acceptance(self._routes, way)

    def accelerator(self, public: str) -> Accelerator | None:
        """Return the cluster's name for a public accelerator type, or None if the settings do not map the
        type."""
        return self._accelerators.get(public)

    @property
    def accelerators(self) -> Sequence[str]:
        """All public accelerator types that the operator has configured."""
        return tuple(self._accelerators)

    def devices_on(self, node: ClusterNode) -> tuple[tuple[str, str], ...]:
        """Return (public type, resource) pairs of the devices that a node may have."""
        return tuple(
            (public, accelerator.resource)
            for public, accelerator in self._accelerators.items()
            if has_labels(node, accelerator.node_selector)
        )


def has_labels(node: ClusterNode, selector: Mapping[str, str]) -> bool:
    return all(node.labels.get(key) == value for key, value in selector.items())


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Return whether a toleration covers a taint, by the scheduler's rules."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def _resolve(machine: MachineRoute, settings: KubernetesSettings) -> KubernetesRoute:
    """Return the route for one table of `machines`. The plain settings provide the values that the table does
    not set."""
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
