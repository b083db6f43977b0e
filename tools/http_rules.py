"""Lists the methods of the served APIs and their REST bindings. Part of `build_descriptors.py`. It reads the
protos of the services and their HTTP annotations. The service reads the list at its start, but the protos
only with the first message."""

from collections.abc import Iterable, Iterator
from typing import Any

from google.api import annotations_pb2  # pyright: ignore[reportMissingTypeStubs]  it ships none
from google.protobuf import descriptor_pb2

_HTTP: Any = annotations_pb2.http

Binding = tuple[str, str, str]
"""The HTTP method, the path template, and the request field that contains the body."""
Call = tuple[str, str, str, str, tuple[Binding, ...], bool]
"""The full name of the service; the names of the method, its request and its response; its bindings; and
whether the response is a stream."""


def calls_of(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> list[Call]:
    """Return the methods of all services in the files, in order."""
    return [
        (
            f"{file.package}.{service.name}",
            method.name,
            method.input_type.removeprefix("."),
            method.output_type.removeprefix("."),
            # A method with streaming requests has no bindings, because REST does not support streaming
            # requests.
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
