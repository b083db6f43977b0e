"""The options of the local engine."""

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainshed.engines.launch.documents import SharedPaths, places_passed_on
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import SecretSource


class Declared(Struct, frozen=True):
    """Resources that each virtual node declares, whatever the machine has, for strict mode and
    demonstrations. 0 or () = its share of the machine."""

    vcpus: float = 0
    memory_bytes: int = 0
    accelerators: tuple[tuple[str, int], ...] = ()


class Options(SharedPaths, frozen=True):
    """The choices of an operator and of the service about the local engine and its programs."""

    #: The machine's address, by which other machines reach its replicas on separate ports; None = replicas
    #: have loopback addresses.
    address: str | None = None
    #: The machine's hosts file, if one gang has the whole machine; None = other software uses the file, too.
    hosts_file: Path | None = None
    #: Resolves the secrets that plans refer to; None = plans may not refer to secrets.
    secrets: SecretSource | None = None
    #: Number of virtual nodes of the machine.
    nodes: int = 1
    declared: Declared = Declared()
    #: Seed for the choice of replicas' addresses and ports, so that the same ones are chosen again; None =
    #: the data directory's identity.
    places: str | None = None
    #: Seconds after which a silent shim is killed and its replica lost.
    lease: float = 30.0
    #: Seconds without a program after which a preloader exits; None = no preloaders.
    warm_idle: float | None = None
    #: The file in /proc with the control groups of the service that starts the replicas.
    membership: str = "/proc/self/cgroup"
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int] = time.time_ns

    def on_this_machine(self, layout: Layout) -> "Options":
        """Return the options with absolute paths, and with values from this machine and the environment."""
        lent = (path for path in places_passed_on(os.environ) if Path(path).exists())
        visible = {*map(str, _resolved(map(Path, self.rules.visible))), *lent}
        private = (layout.slots, layout.logs, layout.autopsies, *_private_places())
        return replace(
            self,
            hidden=(*private, *_resolved(self.hidden)),
            read_only=_resolved(self.read_only),
            rules=replace(self.rules, visible=tuple(sorted(visible))),
            ambient=dict(os.environ),
        )


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)


def _private_places() -> tuple[Path, ...]:
    """Return the directories of the service's user that no program may see: the home directory with its keys,
    and sockets of the user's session."""
    places = [Path("/run/user")]
    with contextlib.suppress(KeyError, OSError):  # The user has no entry, or no home.
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
        # System users have home directories like / and /var/empty.
        if len(home.parts) > 1 and home.stat().st_uid == os.geteuid():
            places.append(home)
    return tuple(places)
