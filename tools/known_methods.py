"""Lists the methods of the public APIs, whether or not the service supports them. Part of
`build_descriptors.py`.

The protos of the services contain the gRPC methods and the paths in their annotations. The discovery
documents contain methods that are configured elsewhere (operations, policies), and APIs without protos.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from discovery_protos import HTTP
from google.protobuf import descriptor_pb2

DOCUMENTS = (
    "aiplatform.v1.json",
    "aiplatform.v1beta1.json",
    "ml.v1.json",
    "logging.v2.json",
    "cloudresourcemanager.v1.json",
    "cloudresourcemanager.v3.json",
    "iam.v1.json",
    "iamcredentials.v1.json",
    "secretmanager.v1.json",
    "serviceusage.v1.json",
    "bigquery.v2.json",
)
"""The APIs whose clients connect to this service, and other APIs that these clients call."""
_BETA = "v1beta1"
_VARIABLE = re.compile(r"\{[^{}=]+(?:=([^{}]+))?\}")

Row = tuple[str, str, str]
"""A method's name (full RPC name or discovery ID), an HTTP verb, and a path with `*` for each variable
segment. The verb and the path are "" if the method exists only in gRPC."""


def known_methods(
    files: Iterable[descriptor_pb2.FileDescriptorProto], documents: Iterable[Mapping[str, Any]]
) -> list[Row]:
    """Return every method of the services and the documents.

    A path occurs only once, with its first name. Methods that are in both `v1` and `v1beta1` have their `v1`
    name.
    """
    rows: dict[tuple[str, str], str] = {}
    without_path: dict[str, None] = {}
    for name, verb, path in (*_of_protos(files), *_of_documents(documents)):
        if not verb:
            without_path[name] = None
        elif (verb, path.replace(f"/{_BETA}/", "/v1/", 1)) not in rows:
            rows.setdefault((verb, path), name)
    stable = set(without_path) | set(rows.values())
    only_grpc = [name for name in without_path if name.replace(_BETA, "v1") not in stable - {name}]
    return [
        *((name, verb, path) for (verb, path), name in rows.items()),
        *((name, "", "") for name in only_grpc),
    ]


def _of_protos(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> Iterator[Row]:
    for file in sorted(files, key=lambda file: (_BETA in file.package, file.name)):
        for service in file.service:
            for method in service.method:
                name = f"{file.package}.{service.name}.{method.name}"
                rule = method.options.Extensions[HTTP]
                bindings = [item for item in (rule, *rule.additional_bindings) if item.WhichOneof("pattern")]
                if not bindings:
                    yield name, "", ""
                for binding in bindings:
                    verb = binding.WhichOneof("pattern")
                    yield name, verb.upper(), _plain(getattr(binding, verb))


def _of_documents(documents: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for document in documents:
        yield from _of_resource(document, "/" + document["servicePath"])


def _of_resource(resource: Mapping[str, Any], before: str) -> Iterator[Row]:
    """Yield the methods of a resource and its children. `before`: the common prefix of their paths."""
    for method in resource.get("methods", {}).values():
        yield method["id"], method["httpMethod"], _plain(before + _path(method))
    for child in resource.get("resources", {}).values():
        yield from _of_resource(child, before)


def _path(method: Mapping[str, Any]) -> str:
    """Return the flat path of a method. If a variable may contain any number of segments, as in `predict`,
    return the method's path with `**` for these segments."""
    for name, parameter in method.get("parameters", {}).items():
        pattern = str(parameter.get("pattern", "")).strip("^$")
        if pattern.endswith("/.*") and "[" not in pattern:
            return str(method["path"]).replace(f"{{+{name}}}", pattern[:-2] + "**")
    return str(method.get("flatPath") or method["path"])


def _plain(template: str) -> str:
    """Convert a path such as `/v1/{parent=projects/*/locations/*}/datasets` to
    `/v1/projects/*/locations/*/datasets`."""
    return _VARIABLE.sub(lambda match: match[1] or "*", template)
