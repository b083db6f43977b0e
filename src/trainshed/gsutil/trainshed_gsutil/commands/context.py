"""What every command is given: its options and arguments, its output, and the storage."""

from trainshed_gsutil import options
from trainshed_gsutil.connection import Connection
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.options import Asked, Options
from trainshed_gsutil.output import Output
from trainshed_gsutil.storage import Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence


class Context:
    """The context of one command. `storage` is connected when it is first needed, since some commands need
    none."""

    def __init__(self, asked: Asked, output: Output) -> None:
        self.asked = asked
        self.output = output
        self._storage: "Storage | None" = None

    @property
    def storage(self) -> Storage:
        """The storage of the caller's project. Raises Unreachable if nothing says where it is."""
        if self._storage is None:
            self._storage = Storage(Connection.of_environment(), self.asked.project)
        return self._storage

    def of_project(self, project: str) -> Storage:
        """The same storage for another project's buckets."""
        return Storage(self.storage.connection, project) if project else self.storage

    def parsed(
        self, known: str, known_long: "Sequence[str]" = (), *, at_least: int = 0
    ) -> "tuple[Options, list[str]]":
        """Returns the command's options and the arguments behind them. Raises CommandFailure."""
        asked = self.asked
        found, rest = options.of_command(asked.command, asked.arguments, known, known_long)
        if len(rest) < at_least:
            raise CommandFailure(
                "The %s command requires at least %d argument%s."
                % (asked.command, at_least, "s" if at_least > 1 else "")
            )
        return found, rest
