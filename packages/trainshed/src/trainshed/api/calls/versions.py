"""`v1beta1` of the Vertex services, served as `v1`: sets which version's types an operation carries.

The messages are the same on the wire; the versions differ only in the types that stand in an operation's
`Any` fields. Clients insist on their own types, also when they poll an operation where no version is named
(the Operations service of gRPC, `/ui/` over REST, spec/clients#operations). So the names of the newest
operations that were handed to `v1beta1` callers are remembered, as long as the service runs.
"""

import enum
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from trainshed.wire.json import encode_text

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

    def remember(self, answer: Any) -> None:
        """Remember the operation, if it is one, in an answer to a `v1beta1` caller."""
        if answer.DESCRIPTOR.full_name != _OPERATION:
            return
        self._names[answer.name] = None
        self._names.move_to_end(answer.name)
        if len(self._names) > _KEPT:
            self._names.popitem(last=False)

    def dress(self, answer: Any, version: Version) -> None:
        """Change the types in an answer in place if it is an operation of `v1beta1`, or a page of
        operations."""
        for operation in _operations(answer):
            if self._is_beta(operation.name, version):
                for field in _PACKED:
                    if operation.HasField(field):
                        packed = getattr(operation, field)
                        packed.type_url = _renamed(packed.type_url)

    def is_due(self, answer: Any, version: Version) -> bool:
        """Whether `dressed` would change anything."""
        return any(self._is_beta(operation.name, version) for operation in _operations(answer))

    def dressed(self, rendered: bytes, version: Version) -> bytes:
        """Return a JSON answer with the types changed as by `dress`. This is done in JSON because the private
        pool has no messages of `v1beta1` as which an `Any` could be rendered."""
        answer: dict[str, Any] = json.loads(rendered)
        operations: list[dict[str, Any]] = answer.get("operations", [answer])
        for operation in operations:
            if self._is_beta(operation.get("name", ""), version):
                for field in _PACKED:
                    packed = operation.get(field)
                    if packed is not None:
                        packed["@type"] = _renamed(packed["@type"])
        return encode_text(answer)

    def _is_beta(self, name: str, version: Version) -> bool:
        return version is Version.V1BETA1 or (version is Version.UNSAID and name in self._names)


def _operations(answer: Any) -> Sequence[Any]:
    kind = answer.DESCRIPTOR.full_name
    if kind == _OPERATION:
        return (answer,)
    return answer.operations if kind == _PAGE else ()


def _renamed(type_url: str) -> str:
    prefix, _, name = type_url.rpartition("/")
    return f"{prefix}/{BETA}{name[len(V1) :]}" if name.startswith(V1) else type_url
