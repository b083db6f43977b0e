"""Answers programs at a replica's metadata endpoint: who they are, in which project, and a token to prove it.

It answers what Google's client libraries ask the metadata server of Google's machines
(spec/program#credentials, spec/clients#metadata). The connection tells who asks, so no program can claim to
be another.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, cast
from urllib.parse import parse_qs

from msgspec import Struct

from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.core.names import JobUid, host_token, project_number
from trainshed.httpd.messages import Response, sized

_TOP: Final = "computeMetadata"
_ZONE: Final = "b"
"""The letter of the zone in each region: nearly all regions have this one."""
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)

Query = Mapping[str, list[str]]


class _Made(Struct, frozen=True):
    """A value that is computed whenever it is asked for by its own name, and that listings of its directory
    omit."""

    answer: Callable[[Query], Response]


class Metadata:
    """Answers requests of programs, and hands out their tokens."""

    def __init__(self, tokens: JobTokens, check: Callable[[JobClaims], None]) -> None:
        """`check`: raises why a program gets no token, if it gets none."""
        self._tokens = tokens
        self._check = check

    def answer(
        self,
        path: str,
        query: str,
        headers: Mapping[str, str],
        program: JobClaims,
        *,
        region: str | None,
        method: str = "GET",
    ) -> Response | None:
        """Returns the answer to a request; None if its path is not one of a metadata server. `query`: as it
        was sent; `headers`: by lower-case name; `region`: where the job runs, if that is known."""
        names = [name for name in path.split("/") if name]
        if names and names[0] != _TOP:
            return None
        if method not in ("GET", "HEAD"):
            return _refused(405, f"{method} is not served here: metadata can only be read.")
        if not names:
            # Clients ask this, perhaps without the header, to find out whether they are on one of Google's
            # machines.
            return _said(f"{_TOP}/\n")
        if headers.get("metadata-flavor") != "Google":
            return _refused(403, "Missing Metadata-Flavor:Google header.")
        if "x-forwarded-for" in headers:
            # The header marks a proxied request: somebody may have been tricked into asking on another's
            # behalf.
            return _refused(403, "A request that was forwarded is not answered.")
        values = parse_qs(query, keep_blank_values=True)
        if _is_true(values, "wait_for_change"):
            return _refused(400, "wait_for_change is not served: nothing changes here.")
        node: Any = {_TOP: {"v1": self._tree(program, region)}}
        for name in names:
            if not isinstance(node, dict) or name not in node:
                return _refused(404, f"{path} is not among the metadata of a replica.")
            node = cast("dict[str, Any]", node)[name]
        return node.answer(values) if isinstance(node, _Made) else _shown(node, values)

    def _tree(self, program: JobClaims, region: str | None) -> dict[str, Any]:
        name = _machine(program)
        account = {
            "aliases": ["default"],
            "email": program.email,
            "identity": _Made(lambda values: self._identity(program, values)),
            "scopes": list(_SCOPES),
            "token": _Made(lambda _: self._access_token(program)),
        }
        digest = hashlib.sha256(f"{program.job_uid}/{program.replica}".encode()).digest()
        return {
            "instance": {
                "attributes": {},
                "hostname": f"{name}.c.{program.project}.internal",
                "id": (int.from_bytes(digest[:8], "big") >> 1),
                "name": name,
                **(_place(program.project, region) if region else {}),
                "service-accounts": {program.email: account, "default": account},
            },
            "project": {
                "attributes": {},
                "numeric-project-id": project_number(program.project),
                "project-id": program.project,
            },
            "universe": {"universe-domain": "googleapis.com"},
        }

    def _access_token(self, program: JobClaims) -> Response:
        """Requested scopes are ignored: permissions follow from what the job is."""
        self._check(program)
        token, seconds = self._tokens.mint(program)
        return _said_json({"access_token": token, "expires_in": seconds, "token_type": "Bearer"})

    def _identity(self, program: JobClaims, values: Query) -> Response:
        audience = values.get("audience", [""])[-1]
        if not audience:
            return _refused(400, "non-empty audience parameter required")
        self._check(program)
        return _said(self._tokens.identity_token(program, audience), "text/html")


def _machine(program: JobClaims) -> str:
    """Returns the machine's name, in the form of Vertex replicas."""
    pool, _, index = program.replica.rpartition("-")
    return f"cmle-training-{pool}-{host_token(JobUid(program.job_uid))}-{index}"


def _place(project_id: str, region: str) -> dict[str, str]:
    """Returns where the job runs. Clients take the region from the zone."""
    project = f"projects/{project_number(project_id)}"
    return {"region": f"{project}/regions/{region}", "zone": f"{project}/zones/{region}-{_ZONE}"}


def _shown(node: Any, values: Query) -> Response:
    """Returns a directory or a value, as text or as JSON, as requested; all below a directory as JSON."""
    if _is_true(values, "recursive"):
        return _said_json(_whole(node))
    if values.get("alt", [""])[-1] == "json":
        return _said_json(_listed(node) if isinstance(node, dict) else node)
    lines = _listed(node)
    return _said("".join(f"{line}\n" for line in lines) if isinstance(node, dict) else lines[0])


def _listed(node: Any) -> list[str]:
    """Returns the entries of a directory, or a value."""
    if isinstance(node, list):
        return ["".join(f"{entry}\n" for entry in cast("list[str]", node))]
    if not isinstance(node, dict):
        return [str(node)]
    members = cast("dict[str, Any]", node)
    return [f"{name}/" if isinstance(part, dict) else name for name, part in members.items()]


def _whole(node: Any) -> Any:
    """Returns everything below a node, with the public names of JSON: `serviceAccounts`."""
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    return {
        name if "@" in name else _camel(name): _whole(part)
        for name, part in members.items()
        if not isinstance(part, _Made)
    }


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _is_true(values: Query, name: str) -> bool:
    return values.get(name, [""])[-1].lower() == "true"


def _said_json(value: Any) -> Response:
    return _said(json.dumps(value), "application/json")


def _said(text: str, kind: str = "application/text") -> Response:
    return _answer(200, text, kind)


def _refused(status: int, why: str) -> Response:
    return _answer(status, f"{why}\n", "text/plain; charset=UTF-8")


def _answer(status: int, text: str, kind: str) -> Response:
    # Clients recognise a metadata server by its flavor.
    more = ((b"metadata-flavor", b"Google"), (b"cache-control", b"no-store"))
    return sized(text.encode(), kind.encode(), status, more)
