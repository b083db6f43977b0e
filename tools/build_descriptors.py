"""Build the descriptor sets of the package `wire` (development only; needs npm and the dev tools).

Run from any directory: `python tools/build_descriptors.py`. It writes these files to
`packages/trainshed/src/trainshed/wire/data/`:

* `aiplatform_v1.binpb.gz`, `logging_v2.binpb.gz`, `resourcemanager_v3.binpb.gz`: compiled from the
  .proto files of the npm packages listed below;
* `ml_v1.binpb.gz`: generated from the discovery document in google-api-python-client
  (`discovery_protos.py`), because the API has no .proto files and no gRPC;
* `calls.json.gz`: the calls of each set and their REST bindings (`http_rules.py`);
* `known_methods.json.gz`: the methods of the public APIs, served or not (`known_methods.py`);
* `ml_v1.discovery.json.gz`, `logging_v2.discovery.json.gz`: discovery documents without prose
  (`discovery_documents.py`).

Names, numbers, types and annotations are kept. Comments and descriptions are removed.
"""

import argparse
import gzip
import importlib.util
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from discovery_documents import without_prose
from discovery_protos import FIELD_BEHAVIOR, HTTP, LOGGING, ML, OUTPUT_ONLY, file_descriptor
from google.protobuf import descriptor_pb2
from http_rules import calls_of
from known_methods import DOCUMENTS, known_methods

PACKAGES = ("@google-cloud/aiplatform@6.11.0", "google-proto-files@5.0.3")
"""npm packages that are search paths for imports. If several contain a file, the first one is used."""
PROTOS = ("build/protos", ".")
"""Directories of the .proto files in the packages."""
SERVICES = (
    "google/cloud/aiplatform/v1/job_service.proto",
    "google/cloud/aiplatform/v1/pipeline_service.proto",
    "google/cloud/aiplatform/v1/vizier_service.proto",
    "google/cloud/aiplatform/v1/model_service.proto",
    "google/cloud/aiplatform/v1/persistent_resource_service.proto",
    "google/cloud/aiplatform/v1/metadata_service.proto",
    "google/cloud/aiplatform/v1/tensorboard_service.proto",
    "google/cloud/aiplatform/v1/dataset_service.proto",
    "google/cloud/aiplatform/v1/schedule_service.proto",
)
SETS = {
    "logging_v2": "google/logging/v2/logging.proto",
    "resourcemanager_v3": "google/cloud/resourcemanager/v3/projects.proto",
}
"""The file with the services, by API."""
AUDIT_LOG = "google/cloud/audit/audit_log.proto"
"""Types that log entries of the audit log contain."""
PUBLIC = (
    "google/cloud/aiplatform/v1/*_service.proto",
    "google/cloud/aiplatform/v1beta1/*_service.proto",
    "google/cloud/resourcemanager/v3/*.proto",
    "google/logging/v2/logging_*.proto",
    "google/cloud/secretmanager/v1/service.proto",
)
"""Files of services whose methods are known, served or not."""
SHARED = (
    "google/longrunning/operations.proto",
    "google/cloud/location/locations.proto",
    "google/iam/v1/iam_policy.proto",
    "google/iam/v1/policy.proto",
    "google/rpc/status.proto",
    "google/rpc/error_details.proto",
    "google/api/httpbody.proto",
    "google/type/expr.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/wrappers.proto",
)
# These files define only options. Options are removed, so the files are not needed at run time.
OPTION_FILES = frozenset(
    {
        "google/api/annotations.proto",
        "google/api/client.proto",
        "google/api/field_behavior.proto",
        "google/api/field_info.proto",
        "google/api/http.proto",
        "google/api/resource.proto",
        "google/protobuf/descriptor.proto",
    }
)
# The protos mark the fields in `INPUT_FIELDS` as output only, although clients send them. Clients send
# measurements that are added to a trial or complete it (spec/clients#surface, VizierService), and trials that
# they create. They also send imported evaluations with their slices, IDs of uploaded blobs, and in an update
# over gRPC the name of the resource.
_RESOURCES_WITH_NAMES_IN_UPDATES = (
    "Artifact",
    "Context",
    "Dataset",
    "Execution",
    "Tensorboard",
    "TensorboardExperiment",
    "TensorboardRun",
    "TensorboardTimeSeries",
)
INPUT_FIELDS = {
    **{f"google.cloud.aiplatform.v1.{resource}": {"name"} for resource in _RESOURCES_WITH_NAMES_IN_UPDATES},
    "google.cloud.aiplatform.v1.Attribution": {
        "approximation_error",
        "baseline_output_value",
        "feature_attributions",
        "instance_output_value",
        "output_display_name",
        "output_index",
        "output_name",
    },
    "google.cloud.aiplatform.v1.Measurement": {"elapsed_duration", "step_count", "metrics"},
    "google.cloud.aiplatform.v1.Measurement.Metric": {"metric_id", "value"},
    "google.cloud.aiplatform.v1.ModelEvaluationSlice": {
        "metrics",
        "metrics_schema_uri",
        "model_explanation",
        "slice",
    },
    "google.cloud.aiplatform.v1.ModelEvaluationSlice.Slice": {"dimension", "slice_spec", "value"},
    "google.cloud.aiplatform.v1.ModelExplanation": {"mean_attributions"},
    "google.cloud.aiplatform.v1.TensorboardBlob": {"id"},
    "google.cloud.aiplatform.v1.Trial.Parameter": {"parameter_id", "value"},
    "google.cloud.aiplatform.v1.Trial": {
        "client_id",
        "final_measurement",
        "infeasible_reason",
        "measurements",
        "parameters",
        "state",
    },
}
IMPORTED_ONLY = frozenset({"google/cloud/aiplatform/v1/notebook_service.proto"})
"""Files of other services, which a served API imports for their messages. Their services are removed."""
STREAMS = frozenset({"ReadTensorboardBlobData", "TailLogEntries"})
"""The streaming methods that the service supports."""
# Repeated string fields, as (name, number) by message. The protos only reserve these fields. Clients send the
# fields, because clients are generated from the discovery document, which contains the fields.
STILL_SENT = {"google.logging.v2.ListLogEntriesRequest": ("project_ids", 1)}
DATA = Path(__file__).resolve().parent.parent / "packages/trainshed/src/trainshed/wire/data"


def main() -> None:
    """Build all files. The descriptor sets depend on each other."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        files = compile_protos(Path(scratch))
    methods = known_methods(files, map(discovery_document, DOCUMENTS))
    write("known_methods.json.gz", json.dumps(methods, separators=(",", ":")).encode())
    served = [reduce_file(file) for file in files if file.name not in OPTION_FILES]
    ml = file_descriptor(discovery_document("ml.v1.json"), ML)
    sets = {
        "aiplatform_v1": closure(served, (*SERVICES, *SHARED)),
        **{api: closure(served, (source,)) for api, source in SETS.items()},
        "logging_v2": closure(served, (SETS["logging_v2"], AUDIT_LOG)),
        "ml_v1": [*closure(served, ml.dependency), ml],
    }
    for api, members in sets.items():
        write(f"{api}.binpb.gz", serialize(members))
    write("calls.json.gz", as_json({api: calls_of(members) for api, members in sets.items()}))

    for api, source, selection in (("ml_v1", "ml.v1.json", ML), ("logging_v2", "logging.v2.json", LOGGING)):
        document = discovery_document(source)
        plain = without_prose(document, selection)
        write(f"{api}.discovery.json.gz", as_json(plain))


def compile_protos(scratch: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    """Fetch the packages. Compile the protos of the served APIs, then those of all other services. Return the
    files with all imports, in build order."""
    folders = [
        fetch(package, scratch / str(number)) / "package" / protos
        for number, (package, protos) in enumerate(zip(PACKAGES, PROTOS, strict=True))
    ]
    # The Python distribution renames this file. Imports use its public name.
    operations = scratch / "renamed" / "google" / "longrunning" / "operations.proto"
    operations.parent.mkdir(parents=True)
    installed = folder_of("google.longrunning.operations_proto_pb2", up=3)
    renamed = installed / "google" / "longrunning" / "operations_proto.proto"
    operations.write_bytes(renamed.read_bytes())

    out = scratch / "set.binpb"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{folders[0]}",
            f"-I{scratch / 'renamed'}",
            f"-I{installed}",
            f"-I{folder_of('grpc_tools', up=1) / '_proto'}",
            *(f"-I{folder}" for folder in folders[1:]),
            "--include_imports",
            f"--descriptor_set_out={out}",
            *SERVICES,
            *SHARED,
            *SETS.values(),
            AUDIT_LOG,
            *every_service(folders),
        ],
        check=True,
    )
    return list(descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file)


def every_service(folders: Iterable[Path]) -> list[str]:
    """Return the files of `PUBLIC` in the folders, by the names under which they are imported."""
    result = {
        str(path.relative_to(folder)): None
        for folder in folders
        for pattern in PUBLIC
        for path in sorted(folder.glob(pattern))
    }
    return list(result)


def fetch(package: str, folder: Path) -> Path:
    """Fetch an npm package and unpack it into the new directory `folder`."""
    folder.mkdir()
    packed = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    with tarfile.open(folder / packed) as archive:
        archive.extractall(folder, filter="data")
    return folder


def reduce_file(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """Remove all options except HTTP routes, field behaviour, packing and map entries. Remove all streaming
    methods except `STREAMS`, and the services of `IMPORTED_ONLY`."""
    file.ClearField("options")
    file.ClearField("source_code_info")
    file.ClearField("extension")
    kept = [name for name in file.dependency if name not in OPTION_FILES]
    del file.dependency[:]
    file.dependency.extend(kept)
    del file.public_dependency[:]
    del file.weak_dependency[:]
    for message in file.message_type:
        reduce_message(message, f"{file.package}.{message.name}")
    for enum in file.enum_type:
        reduce_enum(enum)
    if file.name in IMPORTED_ONLY:
        file.ClearField("service")
    for service in file.service:
        service.ClearField("options")
        kept_methods = [
            method
            for method in service.method
            if not (method.client_streaming or method.server_streaming) or method.name in STREAMS
        ]
        del service.method[:]
        service.method.extend(kept_methods)
        for method in service.method:
            http = method.options.Extensions[HTTP]
            options = descriptor_pb2.MethodOptions()
            if http.ByteSize():
                options.Extensions[HTTP].CopyFrom(http)
            method.options.CopyFrom(options)
    return file


def reduce_message(message: descriptor_pb2.DescriptorProto, full_name: str) -> None:
    """Apply `reduce_file` to a message and the types that it contains."""
    if full_name in STILL_SENT:
        name, number = STILL_SENT[full_name]
        message.ClearField("reserved_name")
        message.ClearField("reserved_range")
        message.field.add(name=name, number=number, json_name="projectIds", label=3, type=9)
    is_map_entry = message.options.map_entry
    message.ClearField("options")
    if is_map_entry:
        message.options.map_entry = True
    for field in message.field:
        behaviours: list[int] = list(field.options.Extensions[FIELD_BEHAVIOR])
        if field.name in INPUT_FIELDS.get(full_name, ()):
            behaviours = [number for number in behaviours if number != OUTPUT_ONLY]
        options = descriptor_pb2.FieldOptions()
        if field.options.HasField("packed"):
            options.packed = field.options.packed
        if behaviours:
            options.Extensions[FIELD_BEHAVIOR].extend(behaviours)
        field.ClearField("options")
        if options.ByteSize():
            field.options.CopyFrom(options)
    for nested in message.nested_type:
        reduce_message(nested, f"{full_name}.{nested.name}")
    for enum in message.enum_type:
        reduce_enum(enum)


def reduce_enum(enum: descriptor_pb2.EnumDescriptorProto) -> None:
    """Keep only the option that allows two names for one number."""
    alias = enum.options.allow_alias
    enum.ClearField("options")
    if alias:
        enum.options.allow_alias = True
    for value in enum.value:
        value.ClearField("options")


def closure(
    files: Iterable[descriptor_pb2.FileDescriptorProto], roots: Iterable[str]
) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the roots and all their imports, in the order of `files` (imports first)."""
    by_name = {file.name: file for file in files}
    wanted: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting.extend(by_name[name].dependency)
    return [file for file in by_name.values() if file.name in wanted]


def serialize(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> bytes:
    """Serialize a FileDescriptorSet deterministically."""
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString(deterministic=True)


def as_json(content: object) -> bytes:
    """Serialize JSON deterministically."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def discovery_document(name: str) -> dict[str, Any]:
    """Read a discovery document from google-api-python-client."""
    documents = folder_of("googleapiclient.discovery_cache", up=1) / "documents"
    return json.loads((documents / name).read_text(encoding="utf-8"))


def folder_of(module: str, *, up: int) -> Path:
    """Return the directory that is `up` levels above the module's file."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{module} is not installed: install the dev dependency group, run again")
    return Path(spec.origin).parents[up - 1]


def write(name: str, content: bytes) -> None:
    """Write compressed content, without a time stamp: the same input gives the same bytes."""
    (DATA / name).write_bytes(gzip.compress(content, 9, mtime=0))
    print(f"{name}: {len(content)} bytes, {(DATA / name).stat().st_size} compressed")  # noqa: T201  a tool speaks on its terminal


if __name__ == "__main__":
    main()
