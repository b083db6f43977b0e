"""Draws the tasks of a pipeline job as a graph: which boxes are open, and where they are. Pure. All lengths
are in pixels."""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from trainshed_console.layers import Edge, Point, arrange
from trainshed_console.task_tree import Task, TaskTree

_MAX_BOXES: Final = 150
_MAX_EDGES: Final = 600
"""Maximum numbers of boxes in a graph, and of edges inside one box."""
_MAX_LISTED: Final = 12
_COLUMNS: Final = 3
"""Maximum numbers of iterations or similar tasks in an open box, and next to each other."""
_WIDTH: Final = 204.0
_HEIGHT: Final = 58.0
"""Size of a folded box. The head of an open box has the same height."""
_PADDING: Final = 14.0
_MAX_OPEN_TASKS: Final = 12
_MAX_OPEN_DEPTH: Final = 3
"""Maximum numbers of tasks and of enclosing DAGs of a DAG that is open by default."""


class Box(Struct, frozen=True):
    """A box of a graph."""

    task: Task
    x: float
    y: float
    width: float
    height: float
    #: The graph inside an open box, which is below the head.
    content: "Graph | None"


class Graph(Struct, frozen=True):
    """The tasks inside a DAG, loop or set."""

    width: float = 0.0
    height: float = 0.0
    boxes: Sequence[Box] = ()
    #: The path of each edge in SVG. Also whether the later task uses outputs of the earlier task; otherwise,
    #: it only waits for the end of that task.
    lines: Sequence[tuple[str, bool]] = ()
    #: Number of tasks that are not shown.
    hidden: int = 0


class Drawing:
    """Draws the tasks of one pipeline job. `opened`, `folded`: paths of the boxes that the user opened or
    folded. Other boxes have their default state."""

    def __init__(self, tree: TaskTree, opened: Collection[str] = (), folded: Collection[str] = ()) -> None:
        self._tree, self._opened, self._folded = tree, opened, folded
        #: Number of boxes that can still be added.
        self._left = _MAX_BOXES

    def draw(self, task: Task) -> Graph:
        """Return the graph of the tasks inside a DAG, loop or set."""
        members, is_dag = self._tree.members(task), task.kind == "dag"
        shown = members[: self._left if is_dag else _MAX_LISTED]
        self._left -= len(shown)
        contents = {member.path: self.draw(member) for member in shown if self._is_open(member)}
        sizes = {member.path: _size(contents.get(member.path)) for member in shown}
        # In a list, edges that are not drawn put the boxes into rows.
        rows = dict.fromkeys(zip(sizes, [*sizes][_COLUMNS:], strict=False), False)
        edges = _edges(shown) if is_dag else rows
        arranged = arrange(sizes, edges)
        corners = arranged.corners
        boxes = [
            Box(member, *corners[member.path], *sizes[member.path], contents.get(member.path))
            for member in sorted(shown, key=lambda member: corners[member.path][::-1])
        ]
        lines = [(_path(arranged.routes[edge]), edges[edge]) for edge in edges if is_dag]
        return Graph(arranged.width, arranged.height, boxes, lines, len(members) - len(shown))

    def _is_open(self, task: Task) -> bool:
        members, is_dag = self._tree.members(task), task.kind == "dag"
        count = len(members) if is_dag else min(len(members), _MAX_LISTED)
        if not 0 < count <= self._left or task.path in self._folded:
            return False
        is_small = count <= _MAX_OPEN_TASKS and task.path.count("/") < _MAX_OPEN_DEPTH
        is_iteration = not task.definition
        by_default = is_dag and is_small and not is_iteration and task.state != "NOT_TRIGGERED"
        return by_default or task.path in self._opened


def _edges(shown: Sequence[Task]) -> dict[Edge, bool]:
    """Return the edges between the tasks of a DAG, and whether each is an edge by data."""
    owner = {task.name: task.path for task in shown}
    owner |= {member.name: task.path for task in shown for member in task.members}
    edges: dict[Edge, bool] = {}
    for task in shown:
        for name, is_data in (pair for t in task.members or (task,) for pair in t.upstream.items()):
            if (start := owner.get(name, task.path)) != task.path and len(edges) < _MAX_EDGES:
                edges[start, task.path] = is_data or edges.get((start, task.path), False)
    return edges


def _size(content: Graph | None) -> Point:
    if content is None:
        return _WIDTH, _HEIGHT
    return max(_WIDTH, content.width + 2 * _PADDING), _HEIGHT + content.height + _PADDING


def _path(points: Sequence[Point]) -> str:
    """Return an edge as data of an SVG path."""
    (x, y), *others = points
    text = f"M{x:.0f} {y:.0f}"
    for place, (to_x, to_y) in enumerate(others):
        middle = f"{(y + to_y) / 2:.0f}"
        curve = f"C{x:.0f} {middle} {to_x:.0f} {middle} {to_x:.0f} {to_y:.0f}"
        text += curve if place % 2 else f"V{to_y:.0f}"
        x, y = to_x, to_y
    return text
