"""Serves `v1beta1` of the Vertex services with the methods of `v1`.

On the wire, the messages of both versions differ only in the types within an operation's `Any` fields.
Clients require the types of their own version. Some clients poll an operation at a path without a version:
the Operations service of gRPC, and `/ui/` over REST (spec/clients#operations). Therefore the service
remembers the newest operations of `v1beta1` callers in memory.
"""

import enum
from collections import OrderedDict
from typing import Any, Final

BETA: Final = "google.cloud.aiplatform.v1beta1."
V1: Final = "google.cloud.aiplatform.v1."
_OPERATION: Final = "google.longrunning.Operation"
_PAGE: Final = "google.longrunning.ListOperationsResponse"
_ANY_FIELDS: Final = ("metadata", "response")
_MAX_OPERATIONS: Final = 4_096


class Version(enum.Enum):
    """The version in the path of a call. UNSPECIFIED = the path serves clients of both versions."""

    V1 = enum.auto()
    V1BETA1 = enum.auto()
    UNSPECIFIED = enum.auto()


class BetaOperations:
    """Converts the types in operations to the client's version. All transports share one instance, because a
    client may create an operation through one transport and poll it through another."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def set_types(self, answer: Any, version: Version, *, created: bool) -> None:
        """Convert the types in a response in place, if the response contains operations and the client uses
        `v1beta1`. `created`: whether the call has created the operation in the response."""
        kind = answer.DESCRIPTOR.full_name
        if created and version is Version.V1BETA1 and kind == _OPERATION:
            self._names[answer.name] = None
            self._names.move_to_end(answer.name)
            if len(self._names) > _MAX_OPERATIONS:
                self._names.popitem(last=False)
        operations = answer.operations if kind == _PAGE else (answer,) if kind == _OPERATION else ()
        for operation in operations:
            if version is Version.V1BETA1 or (
                version is Version.UNSPECIFIED and operation.name in self._names
            ):
                for field in _ANY_FIELDS:
                    if operation.HasField(field):
                        packed = getattr(operation, field)
                        prefix, _, name = packed.type_url.rpartition("/")
                        if name.startswith(V1):
                            packed.type_url = f"{prefix}/{BETA}{name[len(V1) :]}"
