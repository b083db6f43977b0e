"""Maps machine types to options of Slurm jobs, such as the partition, account, features and generic resources
(GRES). Also maps machine types to the nodes that these options select. Pure."""

import re
from collections.abc import Iterable

from msgspec import Struct

from trainshed.core.capacity import Acceptance, MachineWanted, Route
from trainshed_cluster.slurm.records import Gres, NodeLine
from trainshed_cluster.slurm.settings import MachineRoute, SlurmSettings

_FEATURE = r"[A-Za-z0-9_.,@+-]+"


class SlurmRoute(Struct, frozen=True):
    """The options of the Slurm jobs of some machine types."""

    route: Route
    #: One partition, or several separated by commas; "" = Slurm's default partition.
    partition: str
    account: str
    qos: str
    constraint: str
    #: GRES of the route's devices; None = the GRES in `[engines.slurm.accelerators]`.
    gres: Gres | None
    extra: tuple[str, ...]

    @property
    def in_reservation(self) -> bool:
        return any(argument.startswith("--reservation=") for argument in self.extra)

    def leads_to(self, line: NodeLine, *, has_default: bool) -> bool:
        """Return whether jobs with this route's options may use a node. `has_default`: whether the cluster
        has a default partition."""
        if self.partition:
            if line.partitions.isdisjoint(self.partition.split(",")):
                return False
        elif has_default and not line.in_default:
            return False
        if self.gres and not any(
            (gres.name, gres.type) == (self.gres.name, self.gres.type) for gres in line.gres
        ):
            return False
        return has_features(self.constraint, line.features)


class Routes:
    """The routes of a cluster: the options of Slurm jobs by machine type. The first route that matches a
    machine type applies. The last route matches every type."""

    def __init__(self, settings: SlurmSettings) -> None:
        plain = MachineRoute()
        self._all = tuple(_resolve(route, settings) for route in (*settings.machines, plain))
        self._routes = tuple(route.route for route in self._all)
        #: The distinct combinations of partition, account and QOS to which the routes send jobs.
        self.destinations = tuple(
            dict.fromkeys((route.partition, route.account, route.qos) for route in self._all)
        )
        #: Public accelerator type of each GRES, by the GRES's name and type.
        self.public = {("gpu", kind): name for name, kind in settings.accelerators.items()}
        for route in self._all:
            if route.gres:
                self.public[route.gres.name, route.gres.type] = route.route.accelerators[0]

    @property
    def named_partitions(self) -> tuple[str, ...]:
        """The distinct partitions of all routes; "" = Slurm's default partition."""
        names = (name for route in self._all for name in route.partition.split(","))
        return tuple(dict.fromkeys(names))

    @property
    def partitions(self) -> str | None:
        """The partitions to query, separated by commas. None = all partitions, because a route uses the
        default partition, whose name is unknown."""
        return ",".join(self.named_partitions) if all(self.named_partitions) else None

    def of(self, machine: MachineWanted) -> SlurmRoute:
        return next(route for route in self._all if route.route.is_for(machine))

    def acceptance(self, line: NodeLine, *, has_default: bool) -> Acceptance:
        way = [at for at, route in enumerate(self._all) if route.leads_to(line, has_default=has_default)]
        reserved = [at for at in way if self._all[at].in_reservation]
        return Acceptance(self._routes, frozenset(reserved if reserved and line.is_reserved else way))

    def enters_reservation(self, accepts: Acceptance) -> bool:
        """Return whether at least one of the routes that select a node uses a reservation. `accepts`: the
        routes that select the node."""
        return any(self._all[at].in_reservation for at in accepts.open)


def has_features(constraint: str, features: Iterable[str]) -> bool:
    """Return whether a node with the given features satisfies a constraint. Only features joined by & or |
    are evaluated. Any other constraint counts as satisfied, so that Slurm decides."""
    there = set(features)
    for sign, together in (("&", all), ("|", any)):
        if re.fullmatch(rf"{_FEATURE}(?:{re.escape(sign)}{_FEATURE})*", constraint):
            return together(name in there for name in constraint.split(sign))
    return True


def _resolve(machine: MachineRoute, settings: SlurmSettings) -> SlurmRoute:
    """Return the route for one table of `machines`. The plain settings provide the values that the table does
    not set."""
    partition = settings.partition if machine.partition is None else machine.partition
    constraint = settings.constraint if machine.constraint is None else machine.constraint
    name, _, kind = (machine.gres or "").partition(":")
    many = "s" if "," in partition else ""
    partitions = [
        f"partition{many} {partition.replace(',', ', ')}" if partition else "",
        f"features {constraint}" if constraint else "",
    ]
    return SlurmRoute(
        Route(
            tuple(machine.types), tuple(machine.accelerators), " with ".join(filter(None, partitions)) or None
        ),
        partition,
        settings.any_account if machine.account is None else machine.account,
        settings.qos if machine.qos is None else machine.qos,
        constraint,
        Gres(name, kind, 1) if machine.gres else None,
        tuple(settings.extra if machine.extra is None else machine.extra),
    )
