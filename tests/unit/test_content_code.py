"""What an agent is sent of our code is all that it imports, and what others it imports (docs/adr/0063)."""

import ast
import sys
from pathlib import Path

import trainshed
from trainshed.engines.remote.content.bootstrap import AGENT, LIBRARIES, PACKAGES, AgentCode

_ROOT = Path(trainshed.__file__).parents[1]
_STARTS = (AGENT, "trainshed.replica.zygote", "trainshed.replica.endpoint")
_NOT_THERE = {"cryptography", "trainshed_reduction"}
"""What makes certificates, in the service; what programs import, from the cache."""


def _imports(path: Path) -> set[str]:
    """Also those inside of functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _file(module: str) -> Path | None:
    place = _ROOT.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
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
        for name in _imports(path):
            top = name.partition(".")[0]
            if top == "trainshed":
                waiting.append(name)
            elif top not in sys.stdlib_module_names:
                others.setdefault(top, module)
    assert len(seen) > 100
    ours = {module.split(".")[1] for module in seen if "." in module}
    assert ours <= set(PACKAGES), "these are not sent"
    assert others.keys() - _NOT_THERE == set(LIBRARIES), others


def test_the_same_code_is_the_same_archive() -> None:
    assert AgentCode.collect() == AgentCode.collect()
