"""The HTTP surface below `/tensorboard/`: the page of a link, opening a view, TensorBoard itself.

GET  /tensorboard/            the page; the fragment of its URL (after #) contains the view
GET  /tensorboard/PART        the parts of the page
POST /tensorboard/open        request: {view, key} of a link; response: lines {line}, then {path} or {error}
ANY  /tensorboard/VIEW/MARK/  TensorBoard, for clients with a mark of the view (docs/adr/0034)
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from trainshed.access.principals import Credential
from trainshed.api.calls.errors import PublicError, public_error
from trainshed.api.calls.http import NDJSON, LinkPage, error_response, public_error_response, read_json_object
from trainshed.api.calls.links import OPEN_VIEW, Links, count_guesses, link_owner
from trainshed.core.errors import PermissionDenied, RequestError, Unauthenticated
from trainshed.eventloop.background import joined
from trainshed.httpd.messages import Receive, Request, Response, Scope, Send, StreamedResponse, serve
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.sqlite.reader import Reader
from trainshed.summaries.directories import LogDirectory
from trainshed.wire.json import encode_text
from trainshed.wire.status import StatusCode
from trainshed_tracking.viewers.views import PATH, Viewers, directories_of, jobs_of, sources_of, view_link

_PAGE: Final = LinkPage(PATH, Path(__file__).parent / "page", "style-src 'self'; img-src data:")
_MAX_BODY: Final = 4096
"""Maximum size in bytes of a request to open a view. Such a request needs no authentication."""
_FRESH: Final = (b"cache-control", b"no-store")
_SERVED: Final = frozenset({"GET", "HEAD", "POST"})


class ViewerSurface:
    """Responds to requests below `/tensorboard`. Instead of a token, a request needs the key of a link or the
    mark of a view."""

    def __init__(
        self, viewers: Viewers, reader: Reader, access: AccessKeeper, links: Links, closing: asyncio.Event
    ) -> None:
        """`closing`: the event that is set when the service stops. Running responses then end."""
        self._viewers = viewers
        self._reader = reader
        self._access = access
        self._links = links
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(Request(scope, receive), self.answer, error_response, receive, send)

    async def answer(self, request: Request) -> Response:
        """Return the response to a request. Raises an error if the request is invalid."""
        request.api = "trainshed_v1"
        if (request.method, request.raw_path) == ("POST", f"{PATH}open"):
            return await self._open(request)
        view, slash, _ = request.raw_path.removeprefix(PATH).partition("/")
        if slash and jobs_of(view) and request.method in _SERVED:
            return await self._forward(request, view)
        text = (
            f"{request.method} {request.path} does not exist. "
            "`trainshed tensorboard JOB` prints the link to a job's TensorBoard."
        )
        return _PAGE.answer(request) or public_error_response(PublicError(StatusCode.NOT_FOUND, text))

    async def _open(self, request: Request) -> Response:
        fields = await read_json_object(request, _MAX_BODY)
        view = str(fields.get("view"))
        whose = self._links.read(view_link(view), str(fields.get("key")))
        with count_guesses(request.scope):
            directories = await self._directories(view, whose)
        assert whose is not None, "link_owner rejects a missing credential"
        path = f"{view}/{self._links.issue_mark(PATH + view, whose)}/"
        lines = _opening(self._viewers, view, directories, path)
        answer = StreamedResponse(lines, self._closing, NDJSON)
        answer.headers.append(_FRESH)
        return answer

    async def _forward(self, request: Request, view: str) -> Response:
        mark, _, page_path = request.raw_path.removeprefix(f"{PATH}{view}/").partition("/")
        whose = self._links.read_mark(PATH + view, mark)
        if whose is None:
            raise Unauthenticated(
                "This browser has not opened this view within a day. Open the job's link again. "
                "`trainshed tensorboard JOB` prints it."
            )
        if "service-worker" in request.headers:
            # Reject the request: a browser sends this header to install a service worker, which could
            # intercept later requests.
            raise PermissionDenied("Pages of TensorBoard may not install a service worker.")
        directories = await self._directories(view, whose)
        host = request.headers.get("host", "")
        guards = _guards(sources_of(self._links.address, f"{PATH}{view}/{mark}/", host))
        below = request.with_path(f"/{page_path}".encode("latin-1"))
        access = self._access
        lapse = partial(access.lapse, link_owner(access.current_principal, whose, OPEN_VIEW, ()))
        answer = await self._viewers.forward(view, directories, below, lapse)
        answer.headers += guards
        return answer

    async def _directories(self, view: str, whose: Credential | None) -> tuple[LogDirectory, ...]:
        """Return the directories of a view. `whose`: the credential for which the view's link or mark was
        issued. Raises PermissionDenied, NotFound."""
        known = self._access.current_principal
        link_owner(known, whose, OPEN_VIEW, ())
        directories = await directories_of(self._reader, jobs_of(view))
        link_owner(known, whose, OPEN_VIEW, [directory.project for directory in directories])
        return directories


def _guards(sources: str) -> list[tuple[bytes, bytes]]:
    """Return headers that confine a page of TensorBoard, because a job's output may contain scripts (XSS).
    The page can send requests only to URLs below its own path. It cannot reach other pages of this service
    through windows."""
    policy = (
        "sandbox allow-scripts allow-same-origin allow-forms allow-downloads allow-modals; "
        f"default-src 'none'; script-src {sources} 'unsafe-eval'; style-src {sources} 'unsafe-inline' data:; "
        f"img-src {sources} data: blob:; media-src {sources} data: blob:; font-src {sources} data:; "
        # TensorBoard draws curves in a worker.
        f"connect-src {sources}; worker-src {sources}; frame-src 'none'; form-action 'none'; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"cross-origin-opener-policy", b"noopener-allow-popups"),
        (b"cross-origin-resource-policy", b"same-origin"),
        # The URL contains the mark, so the browser must neither send the URL as a referrer nor store the
        # page.
        (b"referrer-policy", b"no-referrer"),
        _FRESH,
        (b"x-content-type-options", b"nosniff"),
    ]


async def _opening(
    viewers: Viewers, view: str, directories: Sequence[LogDirectory], path: str
) -> AsyncGenerator[bytes]:
    """Yield the progress of opening a view as lines of JSON. The last line contains the path of the view
    relative to the page, or an error."""
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    opening = joined(viewers.open(view, directories, lines.put_nowait))
    opening.add_done_callback(lambda _: lines.put_nowait(None))
    try:
        while (line := await lines.get()) is not None:
            yield _line({"line": line})
        try:
            await opening
        except RequestError as error:
            yield _line({"error": public_error(error, "trainshed_v1", path).message})
            return
        yield _line({"path": path})
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


def _line(value: dict[str, str]) -> bytes:
    return encode_text(value) + b"\n"
