"""Which nodes take which jobs: by machine type, accelerator and region. Values only.

A cluster has one table of routes, of which the first that matches a machine counts; each node of the cluster
knows which routes lead to it.
"""

from fnmatch import fnmatchcase

from msgspec import Struct


class MachineWanted(Struct, frozen=True):
    """What decides where a replica may run, besides free capacity."""

    #: Public machine type; "" = not known: then it runs where machines run that no route matches.
    type: str = ""
    #: Public type of its devices; "" = it has none.
    accelerator: str = ""


class Route(Struct, frozen=True):
    """Where machines of some types run."""

    #: Patterns of machine types, such as `a2-*`; () = all.
    types: tuple[str, ...] = ()
    #: Public types of devices, of which a machine must have one; () = with any, or with none.
    accelerators: tuple[str, ...] = ()
    #: The destination, as it goes on in a sentence: "partition gpu"; "" = not known.
    name: str = ""

    def is_for(self, machine: MachineWanted) -> bool:
        if self.accelerators and machine.accelerator not in self.accelerators:
            return False
        return not self.types or any(fnmatchcase(machine.type, pattern) for pattern in self.types)


class Acceptance(Struct, frozen=True):
    """Which replicas a node takes."""

    #: The routes of its cluster; () = every machine may run everywhere.
    routes: tuple[Route, ...] = ()
    #: The positions of the routes that lead to the node.
    open: frozenset[int] = frozenset()

    def takes(self, machine: MachineWanted) -> bool:
        return not self.routes or self.position(machine) in self.open

    def position(self, machine: MachineWanted) -> int:
        """Return the position of the route that a machine takes; -1 = there is none for it."""
        positions = (at for at, route in enumerate(self.routes) if route.is_for(machine))
        return next(positions, -1)

    def destination(self, machine: MachineWanted) -> str:
        """Return the destination of a machine, such as "partition gpu"; "" = not known."""
        at = self.position(machine)
        return self.routes[at].name if at >= 0 else ""


ANYBODY = Acceptance()
"""A node that takes whatever fits."""
