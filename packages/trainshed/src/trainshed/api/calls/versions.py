"""`v1beta1` of the Vertex services, served as `v1`: sets which version's types an operation carries.

The messages are the same on the wire; the versions differ only in the types that stand in an operation's
`Any` fields. Clients insist on their own types, also when they poll an operation where no version is named
(the Operations service of gRPC, `/ui/` over REST, spec/clients#operations). So the names of the newest
operations that were handed to `v1beta1` callers are remembered, as long as the service runs.
"""

import enum
from collections import OrderedDict
from typing import Any, Final

BETA: Final = "google.cloud.aiplatform.v1beta1."
V1: Final = "google.cloud.aiplatform.v1."
_OPERATION: Final = "google.longrunning.Operation"
_PAGE: Final = "google.longrunning.ListOperationsResponse"
_PACKED: Final = ("metadata", "response")
_KEPT: Final = 4_096


class Version(enum.Enum):
    """The version that a call's path names. UNSAID: the path serves the clients of both versions."""

    V1 = enum.auto()
    V1BETA1 = enum.auto()
    UNSAID = enum.auto()


class BetaOperations:
    """Gives operations the types that their clients know. One instance serves all transports, because a
    client may make an operation through one and poll it through another."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def dress(self, answer: Any, version: Version, *, made: bool) -> None:
        """Change the types in an answer in place if it is an operation of `v1beta1`, or a page of operations.
        `made`: whether the call has made the operation that it answers, rather than looked at it."""
        kind = answer.DESCRIPTOR.full_name
        if made and version is Version.V1BETA1 and kind == _OPERATION:
            self._names[answer.name] = None
            self._names.move_to_end(answer.name)
            if len(self._names) > _KEPT:
                self._names.popitem(last=False)
        operations = answer.operations if kind == _PAGE else (answer,) if kind == _OPERATION else ()
        for operation in operations:
            if version is Version.V1BETA1 or (
                version is Version.UNSAID and operation.name in self._names
            ):
                for field in _PACKED:
                    if operation.HasField(field):
                        packed = getattr(operation, field)
                        prefix, _, name = packed.type_url.rpartition("/")
                        if name.startswith(V1):
                            packed.type_url = f"{prefix}/{BETA}{name[len(V1) :]}"
