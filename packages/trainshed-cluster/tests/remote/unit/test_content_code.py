"""What an agent is sent of our code is all that it imports, and what others it imports (docs/adr/0063)."""

import sys
from pathlib import Path

import trainshed
import trainshed_cluster
from tests.unit.test_replica_floor import imported
from trainshed_cluster.remote.content.bootstrap import AGENT, LIBRARIES, PACKAGES, AgentCode

_ROOTS = [Path(str(package.__file__)).parents[1] for package in (trainshed, trainshed_cluster)]
_STARTS = (AGENT, "trainshed.replica.zygote", "trainshed.replica.endpoint")
_NOT_THERE = {"cryptography"}
"""What makes certificates, in the service."""


def _file(module: str) -> Path | None:
    places = [root.joinpath(*module.split(".")) for root in _ROOTS]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def test_all_that_an_agent_imports_is_sent() -> None:
    seen: set[str] = set()
    others: dict[str, str] = {}
    waiting = [*_STARTS]
    while waiting:
        module = waiting.pop()
        path = _file(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        for name in imported(path):
            top = name.partition(".")[0]
            if top in ("trainshed", "trainshed_cluster"):
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                others.setdefault(top, module)
    assert len(seen) > 100
    ours = {module.split(".")[1] for module in seen if module.startswith("trainshed.")}
    assert ours <= set(PACKAGES), "these are not sent"
    assert others.keys() - _NOT_THERE == {*LIBRARIES} - {"trainshed_cluster"}, others


def test_the_same_code_is_the_same_archive() -> None:
    assert AgentCode.collect() == AgentCode.collect()
