"""The metadata endpoint of a replica: identity, project and access tokens for its program.

It responds to the requests that Google's client libraries send to Google's metadata server
(spec/program#credentials, spec/clients#metadata). The connection determines the program, so that no program
can impersonate another one.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, cast
from urllib.parse import parse_qs

from msgspec import Struct

from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.buckets.callers import Caller
from trainshed.buckets.notices import Notices
from trainshed.core.names import JobUid, host_token, project_number
from trainshed.eventloop.background import first_of
from trainshed.httpd.messages import Disconnected, Request, Response, sized_response

_TOP: Final = "computeMetadata"
_TREE: Final[dict[str, Any]] = json.loads((files("trainshed.buckets") / "metadata.json").read_bytes())
"""The directories of the metadata server as a tree. `{name}` stands for a value of the replica. Nearly all
regions have a zone `b`."""
_SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)

Query = Mapping[str, list[str]]


class _Computed(Struct, frozen=True):
    """A value that the service computes for each request to the value's own path. Listings of the directory
    that contains the path omit the value."""

    answer: Callable[[Query], Response]


class _Json(Struct, frozen=True):
    """A value that is JSON in both response formats."""

    value: Any


_MAX_WAIT: Final = 30 * 24 * 3600
"""Maximum value in seconds of a client's `timeout_sec`."""
_ETAG: Final = b"etag"


class Metadata:
    """Responds to metadata requests of programs, and issues their tokens."""

    def __init__(self, tokens: JobTokens, check: Callable[[JobClaims], None], notices: Notices) -> None:
        """`check`: raises an error if a program may not have a token."""
        self._tokens = tokens
        self._check = check
        self._notices = notices

    async def answer(self, request: Request, path: str, caller: Caller) -> Response | None:
        """Return the response to a program's request, or None if the path does not belong to a metadata
        server. Raises Disconnected."""
        names = [name for name in path.split("/") if name]
        if names and names[0] != _TOP:
            return None
        if request.method not in ("GET", "HEAD"):
            return _error_answer(405, f"{request.method} is not supported: metadata can only be read.")
        if not names:
            # Do not require the header `Metadata-Flavor` here: clients may send this request without it, to
            # detect Google's machines.
            return _text_answer(f"{_TOP}/\n")
        if request.headers.get("metadata-flavor") != "Google":
            return _error_answer(403, "Missing Metadata-Flavor:Google header.")
        if "x-forwarded-for" in request.headers:
            # Reject the request, because this header marks a proxied request. An attacker may be using the
            # program as a proxy (SSRF, confused deputy).
            return _error_answer(
                403, "Forwarded requests are rejected. Send the request without X-Forwarded-For."
            )
        values = parse_qs(request.raw_query, keep_blank_values=True)

        def current() -> Response:
            node = _find({_TOP: {"v1": self._tree(caller)}}, names)
            if node is None:
                return _error_answer(404, f"{path} is not part of a replica's metadata.")
            return node.answer(values) if isinstance(node, _Computed) else _to_response(node, values)

        if not _is_true(values, "wait_for_change"):
            return current()
        return await self._wait_for_change(current, values, request, caller)

    async def _wait_for_change(
        self, current: Callable[[], Response], values: Query, request: Request, caller: Caller
    ) -> Response:
        """Return the response when it differs from the client's version, or after the client's timeout."""
        seconds = values.get("timeout_sec", ["0"])[-1]
        if not (seconds.isascii() and seconds.isdecimal()):
            return _error_answer(400, f"timeout_sec={seconds[:50]} is not a number of seconds. Send digits.")
        before = current()
        tag = values.get("last_etag", [""])[-1]
        if before.status != 200 or (tag and tag != _etag(before)) or caller.program is None:
            return before
        if not tag and self._notices.of(caller.program):
            # The change occurred before the client's request, and no further change will come. Respond at
            # once, because the client would wait in vain.
            return before
        if _etag(before) is None:
            return _error_answer(400, "wait_for_change is not supported for tokens. Leave it out.")
        with self._notices.watch(caller.program) as event:

            async def change() -> Response:
                answer = before
                while _etag(answer) == _etag(before) and not self._notices.is_closed:
                    await event.wait()
                    event.clear()
                    answer = current()
                return answer

            try:
                async with asyncio.timeout(min(int(seconds[:9]), _MAX_WAIT) or None):
                    changing, _ = await first_of(change(), request.wait_disconnect())
            except TimeoutError:
                return before
        if changing.cancelled():
            raise Disconnected
        if self._notices.is_closed:
            return _error_answer(503, "The service is restarting. Send the request again.")
        return changing.result()

    def _tree(self, caller: Caller) -> dict[str, Any]:
        program, machine = caller.program, caller.machine
        assert program is not None
        notices = self._notices.of(program)
        is_maintained = "maintenance" in notices
        address = machine.address if (machine.address or "").count(".") == 3 else None
        parts = (address or "0.0.0.0").split(".")
        number = project_number(program.project)
        values = {
            "name": _machine(program),
            "project_id": program.project,
            "project": f"projects/{number}",
            "machine_type": machine.type or "custom",
            "region": machine.region,
            "maintenance_event": "TERMINATE_ON_HOST_MAINTENANCE" if is_maintained else "NONE",
            "preempted": _flag(bool(notices)),
            "automatic_restart": _flag(not machine.is_spot),
            "preemptible": _flag(machine.is_spot),
            "address": address,
            "gateway": ".".join([*parts[:3], "1"]),
            "mac": ":".join(["42", "01", *(f"{int(part):02x}" for part in parts)]),
        }
        tree = _fill(_TREE, values)
        instance = tree["instance"]
        digest = hashlib.sha256(f"{program.job_uid}/{program.replica}".encode()).digest()
        instance["id"] = int.from_bytes(digest[:8], "big") >> 1
        tree["project"]["numeric-project-id"] = number
        account = {
            "aliases": ["default"],
            "email": program.email,
            "identity": _Computed(lambda query: self._identity(program, query)),
            "scopes": list(_SCOPES),
            "token": _Computed(lambda _: self._access_token(program)),
        }
        instance["service-accounts"] = {program.email: account, "default": account}
        instance["tags"] = _Json(instance["tags"])
        if not is_maintained:
            instance["upcoming-maintenance"] = {}
        instance["upcoming-maintenance"] = _Json(instance["upcoming-maintenance"])
        if address is None:
            instance["network-interfaces"] = []
        if not machine.region:
            # If the region is unknown, omit region and zone, because clients derive the region from the zone.
            del instance["region"], instance["zone"]
        return tree

    def _access_token(self, program: JobClaims) -> Response:
        """Return an access token. The requested scopes are ignored, because the job's service account
        determines the rights."""
        self._check(program)
        token, seconds = self._tokens.mint(program)
        value = {"access_token": token, "expires_in": seconds, "token_type": "Bearer"}
        return _text_answer(json.dumps(value), "application/json")

    def _identity(self, program: JobClaims, values: Query) -> Response:
        audience = values.get("audience", [""])[-1]
        if not audience:
            return _error_answer(400, "non-empty audience parameter required")
        self._check(program)
        return _text_answer(self._tokens.identity_token(program, audience), "text/html")


def _machine(program: JobClaims) -> str:
    """Return the replica's machine name in the form that Vertex AI uses."""
    pool, _, index = program.replica.rpartition("-")
    return f"cmle-training-{pool}-{host_token(JobUid(program.job_uid))}-{index}"


def _fill(node: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a node with the replica's values in place of `{name}`."""
    if isinstance(node, dict):
        members = cast("dict[str, Any]", node).items()
        return {name: _fill(member, values) for name, member in members}
    if isinstance(node, list):
        return [_fill(member, values) for member in cast("list[Any]", node)]
    return node.format_map(values) if isinstance(node, str) else node


def _flag(value: bool) -> str:
    return "TRUE" if value else "FALSE"


def _find(tree: Any, names: Sequence[str]) -> Any:
    """Return the node at a path, or None if it does not exist."""
    for name in names:
        tree = _members(tree).get(name)
    return tree


def _members(node: Any) -> dict[str, Any]:
    """Return the entries of a directory by name, or of a list by index."""
    if isinstance(node, list):
        return {str(index): part for index, part in enumerate(cast("list[Any]", node))}
    return cast("dict[str, Any]", node) if isinstance(node, dict) else {}


def _is_directory(node: Any) -> bool:
    """Whether a node is a directory. A list of strings is not a directory but a value with several lines."""
    return isinstance(node, dict) or any(isinstance(part, dict) for part in _members(node).values())


def _to_response(node: Any, values: Query) -> Response:
    """Return a directory or a value in the requested format, text or JSON. With `recursive=true`, return the
    whole directory tree. The format is then JSON, unless the client sends `alt=text`."""
    kind = values.get("alt", [""])[-1]
    if isinstance(node, _Json):
        return _with_etag(json.dumps(node.value), "application/json")
    if _is_true(values, "recursive"):
        if kind == "text":
            return _with_etag("".join(f"{line}\n" for line in _lines(node, "")), "application/text")
        return _with_etag(json.dumps(_expand(node)), "application/json")
    if kind == "json":
        return _with_etag(json.dumps(_entry_names(node) if _is_directory(node) else node), "application/json")
    lines = _entry_names(node)
    text = "".join(f"{line}\n" for line in lines) if _is_directory(node) else lines[0]
    return _with_etag(text, "application/text")


def _entry_names(node: Any) -> list[str]:
    """Return the names in a directory as lines, or the text of a value."""
    if _is_directory(node):
        return [
            f"{name}/" if part == [] or _is_directory(part) else name for name, part in _members(node).items()
        ]
    if isinstance(node, list):
        return ["".join(f"{entry}\n" for entry in cast("list[str]", node))]
    return [str(node)]


def _lines(node: Any, path: str) -> Iterator[str]:
    """Yield `PATH VALUE` for each value below a node."""
    if isinstance(node, _Json):
        yield f"{path} {json.dumps(node.value)}"
    elif _is_directory(node):
        for name, part in _members(node).items():
            yield from _lines(part, f"{path}/{name}" if path else name)
    elif isinstance(node, list):
        yield from (f"{path} {part}" for part in cast("list[str]", node))
    elif not isinstance(node, _Computed):
        yield f"{path} {node}"


def _expand(node: Any) -> Any:
    """Return the whole tree below a node with the public JSON names, such as `serviceAccounts`."""
    if isinstance(node, _Json):
        return node.value
    if isinstance(node, list):
        return [_expand(part) for part in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    members = cast("dict[str, Any]", node)
    return {
        name if "@" in name else _camel(name): _expand(part)
        for name, part in members.items()
        if not isinstance(part, _Computed)
    }


def _camel(name: str) -> str:
    first, *rest = name.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _is_true(values: Query, name: str) -> bool:
    return values.get(name, [""])[-1].lower() == "true"


def _with_etag(text: str, kind: str) -> Response:
    """Return a response with an entity tag, which a client sends to wait for a change."""
    response = _text_answer(text, kind)
    digest = hashlib.sha256(response.body).hexdigest()
    response.headers.append((_ETAG, digest[:16].encode()))
    return response


def _etag(response: Response) -> str | None:
    """Return the entity tag of a response; None for tokens, which have no entity tag."""
    return next((value.decode() for name, value in response.headers if name == _ETAG), None)


def _text_answer(text: str, kind: str = "application/text") -> Response:
    return _answer(200, text, kind)


def _error_answer(status: int, why: str) -> Response:
    return _answer(status, f"{why}\n", "text/plain; charset=UTF-8")


def _answer(status: int, text: str, kind: str) -> Response:
    # Add the header by which clients recognize a metadata server.
    more = ((b"metadata-flavor", b"Google"), (b"cache-control", b"no-store"))
    return sized_response(text.encode(), kind.encode(), status, more)
