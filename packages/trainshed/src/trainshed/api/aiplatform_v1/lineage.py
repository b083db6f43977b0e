"""Links between nodes: contexts and their contents, executions and the artifacts that they read and wrote."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.aiplatform_v1.metadata import SERVICE, view
from trainshed.api.aiplatform_v1.views import message
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.timestamps import set_micros
from trainshed.core.metadata import Edge, EdgeRole, Lineage, NodeKind, NodeName
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import read_labels

_ROLES: Final = {1: EdgeRole.INPUT, 2: EdgeRole.OUTPUT}
"""By the numbers of the public enum."""


async def add_members(call: Call, request: Any) -> Message:
    """Put artifacts and executions into a context. Its etag stays, because the client goes on with what it
    has read."""
    context = NodeName.parse(request.context, NodeKind.CONTEXT, of="context")
    members: list[NodeName] = []
    faults = Faults()
    with faults.gathered():
        members += _names(request.artifacts, NodeKind.ARTIFACT, "artifacts")
    with faults.gathered():
        members += _names(request.executions, NodeKind.EXECUTION, "executions")
    faults.refuse()
    at = call.services.now()
    await call.services.metadata.link(
        [Edge(context, EdgeRole.MEMBER, member, at) for member in members]
    )
    return message("AddContextArtifactsAndExecutionsResponse")


async def add_children(call: Call, request: Any) -> Message:
    """Put contexts below a context; their etags stay as they are."""
    context = NodeName.parse(request.context, NodeKind.CONTEXT, of="context")
    at = call.services.now()
    await call.services.metadata.link(
        [
            Edge(context, EdgeRole.CHILD, child, at)
            for child in _names(request.child_contexts, NodeKind.CONTEXT, "child_contexts")
        ]
    )
    return message("AddContextChildrenResponse")


async def add_events(call: Call, request: Any) -> Message:
    execution = NodeName.parse(request.execution, NodeKind.EXECUTION, of="execution")
    at = call.services.now()
    edges: list[Edge] = []
    faults = Faults()
    for number, event in enumerate(request.events):
        field = f"events[{number}]"
        role = _ROLES.get(event.type)
        if role is None:
            faults.add(f"{field}.type", "An event is of type INPUT or OUTPUT.")
        labels = read_labels(Section({"labels": dict(event.labels)}, field, faults))
        with faults.gathered():
            artifact = NodeName.parse(event.artifact, NodeKind.ARTIFACT, of=f"{field}.artifact")
            if role is not None:
                edges.append(Edge(execution, role, artifact, at, labels))
    faults.refuse()
    await call.services.metadata.link(edges)
    return message("AddExecutionEventsResponse")


async def _subgraph_of(kind: NodeKind, call: Call, request: Any) -> Message:
    """Return what is in a context and in the contexts below it, or what an execution has read and written."""
    name = NodeName.parse(getattr(request, kind.singular), kind, of=kind.singular)
    return _subgraph(await call.services.metadata.lineage(name))


HANDLERS: Final[Handlers] = {
    f"{SERVICE}.AddContextArtifactsAndExecutions": add_members,
    f"{SERVICE}.AddContextChildren": add_children,
    f"{SERVICE}.AddExecutionEvents": add_events,
    f"{SERVICE}.QueryContextLineageSubgraph": partial(_subgraph_of, NodeKind.CONTEXT),
    f"{SERVICE}.QueryExecutionInputsAndOutputs": partial(_subgraph_of, NodeKind.EXECUTION),
}


def _names(texts: Iterable[str], kind: NodeKind, field: str) -> list[NodeName]:
    names: list[NodeName] = []
    faults = Faults()
    for number, text in enumerate(texts):
        with faults.gathered():
            names.append(NodeName.parse(text, kind, of=f"{field}[{number}]"))
    faults.refuse()
    return names


def _subgraph(lineage: Lineage) -> Message:
    graph = message("LineageSubgraph")
    for node in lineage.nodes:
        match node.name.kind:
            case NodeKind.ARTIFACT:
                graph.artifacts.append(view(node))
            case NodeKind.EXECUTION:
                graph.executions.append(view(node))
            case NodeKind.CONTEXT:
                pass  # Contexts are not part of a lineage graph.
    for edge in lineage.events:
        event: Any = graph.events.add(
            artifact=str(edge.target),
            execution=str(edge.source),
            type=edge.role.value.upper(),
            labels=dict(edge.labels),
        )
        set_micros(event.event_time, edge.at)
    return graph
