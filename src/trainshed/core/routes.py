"""Which nodes take which work: by machine type, accelerator and region. Values only.

A cluster has one table of routes, of which the first that is for a machine counts; each of its nodes says
which of them lead to it.
"""

from fnmatch import fnmatchcase

from msgspec import Struct


class MachineWanted(Struct, frozen=True):
    """What decides where a replica may go, besides what is free."""

    #: Public machine type; "" = not known: it goes where machines go that no route is for.
    type: str = ""
    #: Public type of its devices; "" = it has none.
    accelerator: str = ""


class Route(Struct, frozen=True):
    """Where machines of some types go."""

    #: Patterns of machine types, such as `a2-*`; () = all.
    types: tuple[str, ...] = ()
    #: Public types, of one of which a machine must have devices; () = with any, or with none.
    accelerators: tuple[str, ...] = ()
    #: Where it leads, as a sentence goes on: "partition gpu"; "" = nothing is known of that.
    name: str = ""

    def is_for(self, machine: MachineWanted) -> bool:
        if self.accelerators and machine.accelerator not in self.accelerators:
            return False
        return not self.types or any(fnmatchcase(machine.type, one) for one in self.types)


class Acceptance(Struct, frozen=True):
    """Whom a node takes."""

    #: Its cluster's; () = every machine goes everywhere.
    routes: tuple[Route, ...] = ()
    #: Those that lead to the node, by their position.
    open: frozenset[int] = frozenset()
    #: Regions whose jobs it takes; () = all.
    regions: tuple[str, ...] = ()

    def serves(self, region: str) -> bool:
        """Whether jobs of a region may run there; "" = of a region that is not known."""
        return not self.regions or not region or region in self.regions

    def takes(self, machine: MachineWanted, region: str = "") -> bool:
        if not self.serves(region):
            return False
        return not self.routes or self.position(machine) in self.open

    def position(self, machine: MachineWanted) -> int:
        """Of the route that a machine goes; -1 = there is none for it."""
        found = (at for at, route in enumerate(self.routes) if route.is_for(machine))
        return next(found, -1)

    def destination(self, machine: MachineWanted) -> str:
        """Where a machine goes, "partition gpu"; "" = nothing is known of that."""
        at = self.position(machine)
        return self.routes[at].name if at >= 0 else ""


ANYBODY = Acceptance()
"""The node takes whatever fits."""
