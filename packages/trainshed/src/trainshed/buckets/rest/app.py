"""Serves the storage API: finds the caller, checks permissions, and calls the method. Errors have the public
form.

An unknown path is a 404 and an unsupported verb a 400, both with the public error body. Neither is an empty
success.
"""

import errno
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import msgspec

from trainshed.access.authentication_limits import SOURCE, AuthenticationLimiter
from trainshed.buckets import callers
from trainshed.buckets.admission import admit, required_permissions
from trainshed.buckets.authentication import CALLER, Authenticator, Listener, listener_of
from trainshed.buckets.callers import (
    UNKNOWN,
    Caller,
    decode_caller,
    exchange_refresh_token,
    split_key,
    token_answer,
)
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import (
    BucketsError,
    Forbidden,
    InvalidRequest,
    NotFound,
    NotModified,
    NotSupported,
    RangeNotSatisfiable,
    Unauthenticated,
    Unavailable,
    condition_failed,
)
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.names import Endpoint, parse_target, with_copy_source
from trainshed.buckets.rest import bucket_methods, object_methods
from trainshed.buckets.rest.calls import GUARDS, IDENTITY_HEADER, Call, answer, error_answer
from trainshed.buckets.rest.downloads import download
from trainshed.buckets.rest.multipart import InnerRequest, answer_batch
from trainshed.buckets.rest.upload_methods import upload
from trainshed.buckets.rest.uploads import UploadSessions
from trainshed.buckets.rest.xml_methods import answer_xml
from trainshed.buckets.settings import check_request
from trainshed.buckets.signatures import is_signed, read_signature
from trainshed.httpd.connections import SET_HOLDER
from trainshed.httpd.hosts import Hosts, refuse
from trainshed.httpd.messages import Message, Receive, Request, Response, Scope, Send, respond, serve

_THREADS = 32
"""Number of threads for blocking file work. It exceeds the number of processors, because most of the work is
waiting for fsync."""
_MAX_FORM = 16 << 10
"""Maximum size in bytes of a form. Forms are accepted without authentication."""
_FULL_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
_log = logging.getLogger(__name__)


class BucketsApp:
    """The ASGI application of the storage API, for one store."""

    def __init__(
        self, store: ObjectStore, authenticator: Authenticator, *, hosts: Hosts, metadata: Metadata
    ) -> None:
        """`authenticator`: identifies callers at the TCP port. `hosts`: the host names that requests may use.
        Requests with other names are rejected, to prevent DNS rebinding. `metadata`: the metadata endpoint of
        programs."""
        self._store = store
        self._sessions = UploadSessions(store)
        self._authenticator = authenticator
        self._hosts = hosts
        self._metadata = metadata
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="buckets")
        self._authentication_limiter = AuthenticationLimiter(_report_authentication_failures)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        is_port = listener_of(scope.get("state", {})) is Listener.PORT
        if is_port:
            SOURCE.set((scope.get("client") or ("",))[0])

        async def send_answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                if is_port and message["status"] == 401:
                    await self._authentication_limiter.delay_failure(SOURCE.get())
                message = {**message, "headers": [*message.get("headers", ()), *GUARDS]}
            await send(message)

        request = Request(scope, receive)
        host = request.headers.get("host", "") if is_signed(request.parameters) else ""
        bucket = self._hosts.bucket_in(host)
        if not bucket and (fault := self._hosts.fault(scope)):
            await refuse(scope, send_answer, fault)
        else:
            call = self.call_for(request, bucket)
            await serve(call, self.answer, self.refuse, receive, send_answer)

    def call_for(self, request: Request, bucket: str = "") -> Call:
        """Convert a request to a `Call`. `bucket`: the bucket in the host name of a signed URL; "" = none."""
        raw_path: bytes = request.scope.get("raw_path") or request.path.encode()
        key, path = split_key(raw_path)
        request = request.with_path(path)
        if request.override():
            # The body contains the query of a GET request. The storage API does not support this form, so
            # handle the request as an ordinary POST.
            request.scope["method"] = "POST"
        below = b"/%b%b" % (bucket.encode(), path if path != b"/" else b"") if bucket else path
        target, source = parse_target(below), request.headers.get("x-goog-copy-source")
        if source and request.method == "PUT" and target.endpoint is Endpoint.XML:
            target = with_copy_source(target, source)
        return Call(
            request,
            target,
            self._store,
            self._sessions,
            self._pool,
            check_admission=self._readmit,
            listener=listener_of(request.scope.get("state", {})),
            prefix=raw_path[: len(raw_path) - len(path)].decode() if key else "",
            key=key,
        )

    async def _caller(self, call: Call) -> Caller:
        """Return the caller of a request. The listener that received the request determines which data
        identify the caller. Raises Unauthenticated, Unavailable."""
        headers = call.request.headers
        if call.is_signed:
            return await self._signer(call)
        # The ID of an upload session in the URL identifies the caller, but only for the upload. It does not
        # authorize reading the object.
        is_upload = call.request.method in {"PUT", "DELETE"} and "upload_id" in call.query
        if call.target.endpoint is Endpoint.XML and is_upload:
            signer = await call.run(call.sessions.signer, call.target.bucket, call.query["upload_id"])
            if signer is not None:
                return self._authenticator.signer(signer)
        match call.listener:
            case Listener.REPLICA:
                return call.request.scope["state"][CALLER]
            case Listener.GATEWAY:
                identity = headers.get(IDENTITY_HEADER)
                return decode_caller(identity.encode("latin-1")) if identity else UNKNOWN
            case Listener.PORT:
                return await self._authenticator.caller(headers.get("authorization"), call.key)

    async def _signer(self, call: Call) -> Caller:
        """Return the account that signed the request's URL. The first call for a request verifies the URL's
        signature and expiry time; later calls do not verify them again. Raises InvalidRequest, NotSupported,
        Forbidden, Unavailable."""
        if call.signer is None:
            if call.key:
                raise InvalidRequest(
                    "This signed URL was rejected, because its path contains the secret key of a token "
                    "(/with/KEY). Delete this token with `trainshed tokens delete`, because the URL reveals "
                    "its key. Then sign a URL without /with/KEY: "
                    'generate_signed_url(api_access_endpoint="http://HOST:PORT").'
                )
            if call.target.endpoint is not Endpoint.XML:
                raise InvalidRequest(
                    "The signed URL does not have the form http://HOST:PORT/BUCKET/OBJECT. Sign the "
                    "path /BUCKET/OBJECT."
                )
            if call.listener is Listener.REPLICA:
                # Raise NotFound if the bucket does not exist here. The replica's endpoint then forwards the
                # request to Google, because the URL may be a signed URL of Google Cloud Storage.
                await call.run(call.store.catalog.get, call.target.bucket)
            request = call.request
            call.signer = self._authenticator.verify(
                read_signature(request.method, request.raw_path, request.parameters, request.scope["headers"])
            )
        return self._authenticator.signer(call.signer)

    async def _exchange_token(self, call: Call) -> Response:
        body = b"".join([block async for block in call.blocks(limit=_MAX_FORM)])
        if call.key:
            # A client whose URL contains a valid key needs no token. Return a placeholder to this client.
            await self._authenticator.caller(None, call.key)
            return answer(msgspec.json.encode(token_answer("unused")), kind="application/json")

        async def is_known(token: str) -> bool:
            try:
                return await self._authenticator.caller(f"Bearer {token}", "") != UNKNOWN
            except Unauthenticated:
                return False

        status, content = await exchange_refresh_token(body, is_known)
        return answer(msgspec.json.encode(content), status, kind="application/json")

    async def answer(self, call: Call) -> Response:
        if call.path == callers.PATH and call.request.method == "POST":
            return await self._exchange_token(call)
        if not call.is_part:
            call.caller = await self._caller(call)
            SET_HOLDER.get()(call.caller.project or call.caller.email or "")
        if call.listener is Listener.REPLICA and call.caller.program is not None:
            metadata = await self._metadata.answer(call.request, call.path, call.caller)
            if metadata is not None:
                return metadata
        self._admit(call)
        check_request(call.request.headers, call.query)
        return await self._dispatch(call)

    def refuse(self, call: Call, error: Exception) -> Response:
        """Return an error in the form of the public API. Internal errors are also logged with a traceback."""
        response = error_answer(_fault(call, error), call.target.endpoint)
        if isinstance(error, RangeNotSatisfiable):
            response.headers.append((b"content-range", b"bytes */%d" % error.size))
        return response

    def _admit(self, call: Call) -> None:
        """Raise unless the caller has all permissions for the call. Raises Unauthenticated, Forbidden,
        Unavailable."""
        if call.caller.may_do_everything:
            return
        if call.caller.program is not None:
            self._authenticator.check(call.caller.program)
        access = self._store.catalog.access
        for bucket, permission in required_permissions(call.request.method, call.target):
            admit(call.caller, permission, access(bucket))

    async def _readmit(self, call: Call) -> None:
        """Repeat the check of `_admit`, because the caller's permissions may have changed."""
        if not call.is_part:
            call.caller = await self._caller(call)
        self._admit(call)

    async def _dispatch(self, call: Call) -> Response:
        target = call.target
        match target.endpoint:
            case Endpoint.METADATA:
                return await _metadata(call)
            case Endpoint.UPLOAD:
                return await upload(call)
            case Endpoint.DOWNLOAD:
                if call.request.method not in {"GET", "HEAD"}:
                    raise NotSupported(f"{call.request.method} at {call.path} is not supported. Use GET.")
                return await download(call)
            case Endpoint.XML:
                return await answer_xml(call)
            case Endpoint.BATCH:
                return await self._batch(call)
            case Endpoint.UNKNOWN:
                raise NotFound(f"Not Found: {call.path} is not a path of this API. Check the path.")

    async def _batch(self, call: Call) -> Response:
        if call.request.method != "POST":
            raise NotSupported("A batch requires POST. Send it with POST.")
        if call.caller.email is None:
            # Reject the batch before reading its body, because each part would be rejected.
            raise Unauthenticated("A batch needs `Authorization: Bearer TOKEN`.")

        async def answer_part(inner: InnerRequest) -> Response:
            inner_call = self._part_call(call, inner)
            allowed = inner_call.target.endpoint is Endpoint.METADATA
            if not allowed or inner_call.query.get("alt") == "media":
                text = "A batch may contain only metadata calls. Send this call separately."
                return error_answer(InvalidRequest(text), Endpoint.METADATA)
            return await respond(inner_call, self.answer, self.refuse)

        return await answer_batch(call, answer_part)

    def _part_call(self, call: Call, inner: InnerRequest) -> Call:
        """Return a request inside a batch as a `Call`, with the caller and the base URL of the batch."""
        own = {name for name, _ in inner.headers} | {b"content-length", b"content-type"}
        kept = [pair for pair in call.request.scope["headers"] if pair[0] not in own]
        scope: Scope = {
            **call.request.scope,
            "method": inner.method,
            "path": unquote(inner.path.decode("latin-1")),
            "raw_path": inner.path,
            "query_string": inner.query,
            "headers": [*kept, *(p for p in inner.headers if not p[0].startswith(b"x-train"))],
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": inner.body, "more_body": False}

        part = self.call_for(Request(scope, receive))
        part.is_part, part.caller = True, call.caller
        return part


async def _report_authentication_failures(source: str, detail: Mapping[str, object]) -> None:
    _log.warning("repeated unknown tokens or keys from %s: %s", source, detail)


def _fault(call: Call, error: Exception) -> BucketsError:
    """Return the public error for an exception. Unexpected exceptions are logged."""
    what = (call.request.method, call.path)
    match error:
        case NotModified() if call.request.method not in {"GET", "HEAD"}:
            # Only a GET or HEAD may return "not modified". For the source of a copy, `If-None-Match` is an
            # ordinary precondition.
            return condition_failed()
        case BucketsError():
            return error
        case PermissionError():
            return Forbidden(
                f"The service may not access the bucket's files: {error.strerror}. Give the service's user "
                "access to the bucket's directory."
            )
        case OSError() if error.errno == errno.EXDEV:
            return Forbidden(
                "The bucket's directory is on another file system than the service's data, so its objects "
                "can only be read and deleted. Write through /gcs, or move the directory to the data's file "
                "system."
            )
        case OSError() if error.errno == errno.EROFS:
            _log.warning("not stored: %s %s: %s", *what, error.strerror)
            return Unavailable(f"The storage is not writable: {error.strerror}. Mount it for writing.")
        case OSError() if error.errno in _FULL_DISK_ERRORS:
            # Log no traceback: the error repeats for each attempt of each caller, and the log may be on the
            # same full disk.
            _log.warning("out of space: %s %s: %s", *what, error.strerror)
            return Unavailable(f"The storage is full: {error.strerror}. Free some space and try again.")
        case OSError():
            _log.error("file error: %s %s", *what, exc_info=error)
            return BucketsError(f"Internal error: {error.strerror}. Try again.")
        case _:
            _log.error("request failed: %s %s", *what, exc_info=error)
            return BucketsError("Internal error, see the bucket service's log. Try again.")


async def _metadata(call: Call) -> Response:
    target = call.target
    if target.is_objects:
        return await object_methods.collection(call)
    if target.object:
        if target.action:
            return await object_methods.action(call)
        return await object_methods.item(call)
    if target.bucket:
        if target.action:
            return await bucket_methods.part(call)
        return await bucket_methods.bucket(call)
    match call.request.method, (target.action or "").split("/"):
        case "GET", ["projects", project, "serviceAccount"]:
            return bucket_methods.service_account(call, unquote(project))
        case method, [first, *_] if first:
            raise NotSupported(
                f"{method} {target.action} is not supported. Use GET projects/PROJECT/serviceAccount."
            )
        case _:
            pass
    return await bucket_methods.collection(call)
