"""The code that is sent to agents includes all of their imports (docs/adr/0063)."""

import sys
from pathlib import Path

import trainshed
import trainshed_cluster
from tests.unit.test_replica_floor import find_imports
from trainshed_cluster.remote.content.bootstrap import AGENT, LIBRARIES, PACKAGES, AgentCode

_ROOTS = [Path(str(package.__file__)).parents[1] for package in (trainshed, trainshed_cluster)]
_ENTRY_POINTS = (AGENT, "trainshed.replica.zygote", "trainshed.replica.endpoint")
_SERVICE_ONLY = {"cryptography"}
"""Modules that create certificates, which only the service does."""


def _file(module: str) -> Path | None:
    places = [root.joinpath(*module.split(".")) for root in _ROOTS]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def test_code_sent_to_a_node_contains_all_modules_that_an_agent_imports() -> None:
    seen: set[str] = set()
    others: dict[str, str] = {}
    waiting = [*_ENTRY_POINTS]
    while waiting:
        module = waiting.pop()
        path = _file(module)
        if module in seen or path is None:
            continue
        seen.add(module)
        for name in find_imports(path):
            top = name.partition(".")[0]
            if top in ("trainshed", "trainshed_cluster"):
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                others.setdefault(top, module)
    assert len(seen) > 100
    ours = {module.split(".")[1] for module in seen if module.startswith("trainshed.")}
    assert ours <= set(PACKAGES), "these are not sent"
    assert others.keys() - _SERVICE_ONLY == {*LIBRARIES} - {"trainshed_cluster"}, others


def test_unchanged_agent_code_yields_an_identical_archive() -> None:
    assert AgentCode.collect() == AgentCode.collect()
