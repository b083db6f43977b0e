"""The options of the local engine."""

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainshed.engines.launch.documents import SharedPaths, inherited_paths
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import SecretSource


class Declared(Struct, frozen=True):
    """Resources that each virtual node declares, regardless of the machine's resources. Used in strict mode
    and for demonstrations. 0 or () = an equal share of the machine."""

    vcpus: float = 0
    memory_bytes: int = 0
    accelerators: tuple[tuple[str, int], ...] = ()


class Options(SharedPaths, frozen=True):
    """The settings of the local engine and its programs, from an operator and from the service."""

    #: The machine's address, if other machines reach its replicas there on separate ports. None = replicas
    #: have loopback addresses.
    address: str | None = None
    #: The machine's hosts file, for the engine to write. Set only if one gang has the whole machine; None =
    #: other software also uses the file.
    hosts_file: Path | None = None
    #: Resolves the secrets that launch plans refer to; None = plans may not refer to secrets.
    secrets: SecretSource | None = None
    #: Number of virtual nodes of the machine.
    nodes: int = 1
    declared_resources: Declared = Declared()
    #: Seed for the choice of replicas' addresses and ports, so that the choice can be repeated. None = the
    #: identity of the data directory.
    places: str | None = None
    #: Number of seconds after which a silent shim is killed and its replica counts as lost.
    lease: float = 30.0
    #: Seconds without a program after which a preloader exits; None = no preloaders.
    warm_idle: float | None = None
    #: The file in /proc that lists the control groups of the service that starts the replicas.
    membership: str = "/proc/self/cgroup"
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int] = time.time_ns

    def on_this_machine(self, layout: Layout) -> "Options":
        """Return the options with absolute paths, and with defaults from this machine and the environment."""
        lent = (path for path in inherited_paths(os.environ) if Path(path).exists())
        visible = {*map(str, _resolve(map(Path, self.rules.visible))), *lent}
        private = (layout.slots, layout.logs, layout.autopsies, *_private_places())
        return replace(
            self,
            hidden=(*private, *_resolve(self.hidden)),
            read_only=_resolve(self.read_only),
            rules=replace(self.rules, visible=tuple(sorted(visible))),
            ambient=dict(os.environ),
        )


def _resolve(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)


def _private_places() -> tuple[Path, ...]:
    """Return the directories of the service's user that no program may see: the home directory, which
    contains keys, and the directory with the sockets of the user's session."""
    places = [Path("/run/user")]
    # Ignore a user without an entry in /etc/passwd, or without a home directory.
    with contextlib.suppress(KeyError, OSError):
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
        # System users have home directories such as / and /var/empty. Programs need these directories, so
        # they must stay visible.
        if len(home.parts) > 1 and home.stat().st_uid == os.geteuid():
            places.append(home)
    return tuple(places)
