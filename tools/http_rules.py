"""Lists the calls of served APIs and their REST bindings: part of `build_descriptors.py`.

From the services' protos and their http annotations. The service reads the list at its start, and the protos
themselves with the first message.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from google.api import annotations_pb2  # pyright: ignore[reportMissingTypeStubs]  it ships none
from google.protobuf import descriptor_pb2

_HTTP: Any = annotations_pb2.http

Binding = tuple[str, str, str]
"""The HTTP method, the template of the path, and which field of the request the body is."""
Call = tuple[str, str, str, str, tuple[Binding, ...], bool]
"""The full name of the service, the method's own, those of the request and of the response; its bindings;
whether it returns a stream."""


def calls_of(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> list[Call]:
    """All of the files' services, in their order."""
    return [
        (
            f"{file.package}.{service.name}",
            method.name,
            method.input_type.removeprefix("."),
            method.output_type.removeprefix("."),
            # REST has no requests that stream.
            () if method.client_streaming else tuple(_bindings(method.options.Extensions[_HTTP])),
            method.server_streaming,
        )
        for file in files
        for service in file.service
        for method in service.method
    ]


def _bindings(rule: Any) -> Iterator[Binding]:
    for binding in (rule, *rule.additional_bindings):
        if (verb := binding.WhichOneof("pattern")) is not None:
            yield verb.upper(), getattr(binding, verb), binding.body
