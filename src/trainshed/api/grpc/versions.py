"""`v1beta1` of the Vertex services, served as `v1`: the messages are the same on the wire.

All that tells them apart is the type that stands in an operation's `Any` fields. Clients insist on theirs, also when
they ask the version-less Operations service about it later; so the names of operations that were handed to a
`v1beta1` caller are remembered, the newest ones, as long as the service runs.
"""

from collections import OrderedDict
from typing import Any, Final

_BETA: Final = "google.cloud.aiplatform.v1beta1."
_V1: Final = "google.cloud.aiplatform.v1."
_OPERATION: Final = "google.longrunning.Operation"
_PAGE: Final = "google.longrunning.ListOperationsResponse"
_KEPT: Final = 4_096


def is_beta(path: str) -> bool:
    """Whether a gRPC path (`/package.Service/Method`) is of the aliased version."""
    return path.startswith(f"/{_BETA}")


def aliased(path: str) -> str:
    """The path of the method that serves `path`."""
    return f"/{_V1}{path[len(_BETA) + 1 :]}" if is_beta(path) else path


class BetaOperations:
    """Gives operations the types that their readers know."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def dress(self, answer: Any, *, beta: bool) -> None:
        """Change the types within an answer in place, where it is an operation, or a page of them, of `v1beta1`.

        `beta`: the caller speaks it, and what he is answered now is remembered as his.
        """
        kind = answer.DESCRIPTOR.full_name
        if kind == _OPERATION:
            if beta:
                self._remember(answer.name)
            if answer.name in self._names:
                _retype(answer)
        elif kind == _PAGE and self._names:
            for operation in answer.operations:
                if operation.name in self._names:
                    _retype(operation)

    def _remember(self, name: str) -> None:
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > _KEPT:
            self._names.popitem(last=False)


def _retype(operation: Any) -> None:
    for field in ("metadata", "response"):
        if operation.HasField(field):
            packed = getattr(operation, field)
            prefix, _, name = packed.type_url.rpartition("/")
            if name.startswith(_V1):
                packed.type_url = f"{prefix}/{_BETA}{name[len(_V1) :]}"
