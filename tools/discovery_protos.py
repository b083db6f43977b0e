"""Converts a discovery document into a FileDescriptorProto. Part of `build_descriptors.py`.

This module selects the methods and determines the names. Messages that have a public .proto (operations,
policies, status) are references and are never redefined.

Rules:

- The formats int64, double and byte keep their types.
- google-datetime, -duration and -fieldmask become the well-known messages.
- A map of strings becomes a map, a map of `any` a Struct, `any` a Value.
- An inline enum is nested in its message, with the field's name. Its numbers are the positions of the values.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.api import annotations_pb2, field_behavior_pb2  # pyright: ignore[reportMissingTypeStubs]  the distribution ships none
from google.protobuf import descriptor_pb2

Field = descriptor_pb2.FieldDescriptorProto
Schema = Mapping[str, Any]
HTTP: Any = annotations_pb2.http
FIELD_BEHAVIOR: Any = field_behavior_pb2.field_behavior
OUTPUT_ONLY = 3  # google.api.FieldBehavior


@dataclass(frozen=True, slots=True)
class Selection:
    """The served methods of a document and their names in the protos."""

    package: str
    #: Prefix of the schema names. The rest of the name is the name of the message.
    prefix: str
    #: Discovery ID without the API's name → (service, RPC).
    methods: Mapping[str, tuple[str, str]]
    structs: frozenset[tuple[str, str]] = frozenset()
    #: Schema → fields that only the service writes, although the document does not mark them as output.
    output_only: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    #: (schema, field) pairs that the document marks as output, although clients send them.
    taken_as_input: frozenset[tuple[str, str]] = frozenset()
    #: Schema → oneof name → fields of the oneof. A oneof distinguishes zero from unset.
    oneofs: Mapping[str, Mapping[str, tuple[str, ...]]] = field(
        default_factory=dict[str, Mapping[str, tuple[str, ...]]]
    )
    #: Schemas that occur only in an Any: responses and metadata of operations.
    details: tuple[str, ...] = ()


VIZIER = {
    "create": "CreateStudy",
    "get": "GetStudy",
    "list": "ListStudies",
    "delete": "DeleteStudy",
    "trials.create": "CreateTrial",
    "trials.get": "GetTrial",
    "trials.list": "ListTrials",
    "trials.delete": "DeleteTrial",
    "trials.suggest": "SuggestTrials",
    "trials.addMeasurement": "AddTrialMeasurement",
    "trials.complete": "CompleteTrial",
    "trials.stop": "StopTrial",
    "trials.checkEarlyStoppingState": "CheckTrialEarlyStoppingState",
    "trials.listOptimalTrials": "ListOptimalTrials",
}
ML = Selection(
    package="google.cloud.ml.v1",
    prefix="GoogleCloudMlV1",
    methods={
        "projects.getConfig": ("ProjectManagementService", "GetConfig"),
        "projects.jobs.create": ("JobService", "CreateJob"),
        "projects.jobs.get": ("JobService", "GetJob"),
        "projects.jobs.list": ("JobService", "ListJobs"),
        "projects.jobs.patch": ("JobService", "UpdateJob"),
        "projects.jobs.cancel": ("JobService", "CancelJob"),
        "projects.jobs.getIamPolicy": ("JobService", "GetIamPolicy"),
        "projects.jobs.setIamPolicy": ("JobService", "SetIamPolicy"),
        "projects.jobs.testIamPermissions": ("JobService", "TestIamPermissions"),
        "projects.locations.get": ("ProjectManagementService", "GetLocation"),
        "projects.locations.list": ("ProjectManagementService", "ListLocations"),
        "projects.operations.get": ("Operations", "GetOperation"),
        "projects.operations.list": ("Operations", "ListOperations"),
        "projects.operations.cancel": ("Operations", "CancelOperation"),
        "projects.locations.operations.get": ("Operations", "GetOperation"),
        "projects.locations.operations.cancel": ("Operations", "CancelOperation"),
        **{f"projects.locations.studies.{method}": ("VizierService", rpc) for method, rpc in VIZIER.items()},
    },
    # Only the service writes trainingOutput and predictionOutput, because they are results
    # (facts/service_facts.md, section 1.1).
    output_only={"GoogleCloudMlV1__Job": frozenset({"state", "trainingOutput", "predictionOutput"})},
    taken_as_input=frozenset({("GoogleCloudMlV1__Measurement", "elapsedTime")}),
    oneofs={"GoogleCloudMlV1_Trial_Parameter": {"value": ("floatValue", "intValue", "stringValue")}},
    details=(
        "GoogleCloudMlV1__SuggestTrialsResponse",
        "GoogleCloudMlV1__SuggestTrialsMetadata",
        "GoogleCloudMlV1__CheckTrialEarlyStoppingStateResponse",
        "GoogleCloudMlV1__CheckTrialEarlyStoppingStateMetatdata",
    ),
)
LOGGING = Selection(
    package="google.logging.v2",
    prefix="",
    methods={
        "entries.list": ("LoggingServiceV2", "ListLogEntries"),
        "entries.write": ("LoggingServiceV2", "WriteLogEntries"),
    },
)

# Schema (without prefixes) → public message and the file that defines it.
KNOWN = {
    "GoogleApi__HttpBody": ("google.api.HttpBody", "google/api/httpbody.proto"),
    "GoogleIamV1__Policy": ("google.iam.v1.Policy", "google/iam/v1/policy.proto"),
    "GoogleIamV1__SetIamPolicyRequest": (
        "google.iam.v1.SetIamPolicyRequest",
        "google/iam/v1/iam_policy.proto",
    ),
    "GoogleIamV1__TestIamPermissionsRequest": (
        "google.iam.v1.TestIamPermissionsRequest",
        "google/iam/v1/iam_policy.proto",
    ),
    "GoogleIamV1__TestIamPermissionsResponse": (
        "google.iam.v1.TestIamPermissionsResponse",
        "google/iam/v1/iam_policy.proto",
    ),
    "GoogleLongrunning__Operation": ("google.longrunning.Operation", "google/longrunning/operations.proto"),
    "GoogleLongrunning__ListOperationsResponse": (
        "google.longrunning.ListOperationsResponse",
        "google/longrunning/operations.proto",
    ),
    "GoogleProtobuf__Empty": ("google.protobuf.Empty", "google/protobuf/empty.proto"),
    "GoogleRpc__Status": ("google.rpc.Status", "google/rpc/status.proto"),
    "GoogleType__Expr": ("google.type.Expr", "google/type/expr.proto"),
    "Status": ("google.rpc.Status", "google/rpc/status.proto"),
}
# RPCs whose request is a public message.
KNOWN_REQUESTS = {
    "GetIamPolicy": ("google.iam.v1.GetIamPolicyRequest", "google/iam/v1/iam_policy.proto"),
    "SetIamPolicy": KNOWN["GoogleIamV1__SetIamPolicyRequest"],
    "TestIamPermissions": KNOWN["GoogleIamV1__TestIamPermissionsRequest"],
    "GetOperation": ("google.longrunning.GetOperationRequest", "google/longrunning/operations.proto"),
    "ListOperations": ("google.longrunning.ListOperationsRequest", "google/longrunning/operations.proto"),
    "CancelOperation": ("google.longrunning.CancelOperationRequest", "google/longrunning/operations.proto"),
}
SCALARS = {
    ("string", ""): Field.TYPE_STRING,
    ("string", "int64"): Field.TYPE_INT64,
    ("string", "uint64"): Field.TYPE_UINT64,
    ("string", "byte"): Field.TYPE_BYTES,
    ("integer", "int32"): Field.TYPE_INT32,
    ("integer", "uint32"): Field.TYPE_UINT32,
    ("number", "double"): Field.TYPE_DOUBLE,
    ("number", "float"): Field.TYPE_FLOAT,
    ("boolean", ""): Field.TYPE_BOOL,
}
MESSAGES = {
    ("string", "google-datetime"): ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
    ("string", "google-duration"): ("google.protobuf.Duration", "google/protobuf/duration.proto"),
    ("string", "google-fieldmask"): ("google.protobuf.FieldMask", "google/protobuf/field_mask.proto"),
    ("any", ""): ("google.protobuf.Value", "google/protobuf/struct.proto"),
}
STRUCT = ("google.protobuf.Struct", "google/protobuf/struct.proto")


def file_descriptor(document: Schema, selection: Selection) -> descriptor_pb2.FileDescriptorProto:
    """Return a file with the selected methods as services, and all schemas that they reference."""
    return _Builder(document, selection).build()


class _Builder:
    """Builds one file. An instance can be used only once."""

    def __init__(self, document: Schema, selection: Selection) -> None:
        self.schemas: Mapping[str, Schema] = document["schemas"]
        self.document = document
        self.selection = selection
        name = f"{selection.package.replace('.', '/')}/{document['name']}.proto"
        self.file = descriptor_pb2.FileDescriptorProto(name=name, package=selection.package, syntax="proto3")
        self.made: set[str] = set()
        self.waiting: list[str] = []

    def build(self) -> descriptor_pb2.FileDescriptorProto:
        services: dict[str, descriptor_pb2.ServiceDescriptorProto] = {}
        for key, method in methods(self.document):
            if key in self.selection.methods:
                service, rpc = self.selection.methods[key]
                if service not in services:
                    services[service] = self.file.service.add(name=service)
                self.add_rpc(services[service], rpc, method)
        for schema in self.selection.details:
            self.message_type(schema)
        while self.waiting:
            schema = self.waiting.pop()
            message = self.file.message_type.add(name=self.local_name(schema))
            self.add_fields(message, self.schemas[schema]["properties"], schema)
        return self.file

    def local_name(self, schema: str) -> str:
        return schema.removeprefix(self.selection.prefix).lstrip("_")

    def import_message(self, known: tuple[str, str]) -> str:
        if known[1] not in self.file.dependency:
            self.file.dependency.append(known[1])
        return f".{known[0]}"

    def message_type(self, schema: str) -> str:
        if schema in KNOWN:
            return self.import_message(KNOWN[schema])
        if schema not in self.made:
            self.made.add(schema)
            self.waiting.append(schema)
        return f".{self.selection.package}.{self.local_name(schema)}"

    def add_rpc(self, service: descriptor_pb2.ServiceDescriptorProto, rpc: str, method: Schema) -> None:
        parameters: dict[str, Schema] = dict(method.get("parameters", {}))
        body_schema: str = method.get("request", {}).get("$ref", "")
        path = template(method["path"], parameters)
        for known in service.method:
            if known.name == rpc:
                # The messages exist already, because the same RPC has another path.
                rule: Any = known.options.Extensions[HTTP].additional_bindings.add(
                    body="*" if body_schema else ""
                )
                setattr(rule, method["httpMethod"].lower(), path)
                return
        out = service.method.add(name=rpc, output_type=self.message_type(method["response"]["$ref"]))
        http: Any = out.options.Extensions[HTTP]
        setattr(http, method["httpMethod"].lower(), path)
        if rpc in KNOWN_REQUESTS:
            out.input_type = self.import_message(KNOWN_REQUESTS[rpc])
            http.body = "*" if body_schema else ""
            return
        properties: dict[str, Schema] = {name: parameters[name] for name in sorted(parameters)}
        if body_schema.endswith("Request"):
            http.body = "*"
            self.made.add(body_schema)
            properties |= self.schemas[body_schema].get("properties", {})
        elif body_schema:
            http.body = snake(self.local_name(body_schema))
            properties[self.local_name(body_schema)[0].lower() + self.local_name(body_schema)[1:]] = {
                "$ref": body_schema
            }
        message = self.file.message_type.add(name=f"{rpc}Request")
        out.input_type = f".{self.selection.package}.{message.name}"
        self.add_fields(message, properties, body_schema)

    def add_fields(
        self, message: descriptor_pb2.DescriptorProto, properties: Mapping[str, Schema], schema: str
    ) -> None:
        hidden = self.selection.output_only.get(schema, frozenset())
        choices = {
            member: name
            for name, members in self.selection.oneofs.get(schema, {}).items()
            for member in members
        }
        for number, (name, prop) in enumerate(properties.items(), start=1):
            out = message.field.add(
                name=snake(name), json_name=name, number=number, label=Field.LABEL_OPTIONAL
            )
            self.set_type(message, out, prop)
            if name in choices:
                out.oneof_index = self.choice(message, choices[name])
            if name in hidden or (output_only(prop) and (schema, name) not in self.selection.taken_as_input):
                out.options.Extensions[FIELD_BEHAVIOR].append(OUTPUT_ONLY)

    def choice(self, message: descriptor_pb2.DescriptorProto, name: str) -> int:
        known = [oneof.name for oneof in message.oneof_decl]
        if name not in known:
            message.oneof_decl.add(name=name)
            known.append(name)
        return known.index(name)

    def set_type(
        self, message: descriptor_pb2.DescriptorProto, out: descriptor_pb2.FieldDescriptorProto, prop: Schema
    ) -> None:
        kind = (prop.get("type", ""), prop.get("format", ""))
        if "$ref" in prop:
            out.type, out.type_name = Field.TYPE_MESSAGE, self.message_type(prop["$ref"])
        elif kind[0] == "array":
            self.set_type(message, out, prop["items"])
            out.label = Field.LABEL_REPEATED
        elif kind[0] == "object":
            values: Schema = prop.get("additionalProperties", {"type": "any"})
            if values.get("type") == "any":
                out.type, out.type_name = Field.TYPE_MESSAGE, self.import_message(STRUCT)
            else:
                self.set_map(message, out, values)
        elif "enum" in prop:
            out.type, out.type_name = Field.TYPE_ENUM, self.add_enum(message, out, prop["enum"])
        elif kind in MESSAGES:
            out.type, out.type_name = Field.TYPE_MESSAGE, self.import_message(MESSAGES[kind])
        else:
            out.type = SCALARS[kind]

    def path(self, message: descriptor_pb2.DescriptorProto, nested: str) -> str:
        return f".{self.selection.package}.{message.name}.{nested}"

    def set_map(
        self,
        message: descriptor_pb2.DescriptorProto,
        out: descriptor_pb2.FieldDescriptorProto,
        values: Schema,
    ) -> None:
        entry = message.nested_type.add(name=f"{camel(out.name)}Entry")
        entry.options.map_entry = True
        optional = Field.LABEL_OPTIONAL
        entry.field.add(name="key", number=1, label=optional, type=Field.TYPE_STRING)
        value = entry.field.add(name="value", number=2, label=optional)
        self.set_type(message, value, values)
        out.label, out.type = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
        out.type_name = self.path(message, entry.name)

    def add_enum(
        self,
        message: descriptor_pb2.DescriptorProto,
        out: descriptor_pb2.FieldDescriptorProto,
        names: list[str],
    ) -> str:
        name = camel(out.name)
        taken = {value.name for enum in message.enum_type for value in enum.value}
        scope = message
        if taken.intersection(names):
            # Enum values share the scope of the enum. If another enum has a value with the same name, this
            # enum gets its own scope.
            scope = message.nested_type.add(name=f"{name}Enum")
        enum = scope.enum_type.add(name=name)
        for number, value in enumerate(names):
            enum.value.add(name=value, number=number)
        return self.path(message, name if scope is message else f"{scope.name}.{name}")


def methods(document: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield every method of a document by its dotted ID, without the API's name."""
    waiting: list[Schema] = [document]
    while waiting:
        resource = waiting.pop(0)
        for method in resource.get("methods", {}).values():
            yield str(method["id"]).removeprefix(f"{document['name']}."), method
        waiting.extend(resource.get("resources", {}).values())


def template(path: str, parameters: Mapping[str, Schema]) -> str:
    """Convert a path such as `v1/{+name}:cancel` and the pattern of its parameter to the template of an HTTP
    rule."""

    def variable(match: re.Match[str]) -> str:
        name = match.group(1)
        pattern = str(parameters[name]["pattern"]).strip("^$").replace("[^/]+", "*")
        return f"{{{snake(name)}={pattern.replace('.*', '**')}}}"

    return "/" + re.sub(r"\{\+?(\w+)\}", variable, path)


def output_only(prop: Schema) -> bool:
    """Return whether only the service writes the field. Older documents mention it only in descriptions."""
    return bool(prop.get("readOnly")) or str(prop.get("description", "")).startswith("Output only")


def snake(name: str) -> str:
    """Convert a name such as `consumedMLUnits` to `consumed_ml_units`."""
    split = re.sub(r"([a-z0-9])([A-Z])|([A-Z])(?=[A-Z][a-z])", r"\1\3_\2", name)
    return split.lower()


def camel(name: str) -> str:
    """Convert a name such as `scale_tier` to `ScaleTier`."""
    return "".join(part.capitalize() for part in name.split("_"))
