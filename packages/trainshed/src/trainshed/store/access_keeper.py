"""Stores changes of users, roles and tokens (the access book). Changes are stored one after another, each
with its audit record. A change is in force when the call that stores it returns."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from trainshed.access.authentication_limits import FailureCounter
from trainshed.access.book import FILE, AccessBook, AccessFile, Documents, documents
from trainshed.access.principals import Principal
from trainshed.access.tokens import TokenAuthority
from trainshed.core.errors import Unavailable
from trainshed.core.units import Nanos
from trainshed.replica.system import durable
from trainshed.store import audit
from trainshed.store.sqlite.resources import Access
from trainshed.wire.status import StatusCode

log = logging.getLogger(__name__)

_USES_EVERY = 60.0
"""Seconds between two writes of the last-use times of tokens."""
_DAY = 24 * 3600.0
REFUSALS = 50
"""Maximum number of audit records per day for rejected calls of one user. Without this limit, rejected calls
could fill the disk."""
_MAX_NAME_CHARS = 120
"""Maximum length in characters of a resource name in a rejected call. The name may be any text."""


class AccessKeeper:
    """Stores the users, service accounts and their permissions. All methods are called on the event loop."""

    def __init__(
        self, store: Access, authority: TokenAuthority, owner: str, data: Path, now: Callable[[], int]
    ) -> None:
        """`owner`: the digest of the token of the service's owner. `data`: the data directory, which contains
        the bucket process's file."""
        self._store = store
        self._authority = authority
        self.authenticate, self.principal_of = authority.authenticate, authority.principal_of
        self.current_principal, self.mint = authority.current_principal, authority.mint
        self.origin_of, self.revalidate = authority.origin_of, authority.revalidate
        self.is_valid, self.read_assertion = authority.is_valid, authority.read_assertion
        self.audit_rows = store.audit_rows
        self._owner = owner
        self._file = data / FILE
        self._now = now
        self._changing = asyncio.Lock()
        stored, uses = store.load()
        self._stored = dict(stored)
        #: Whether the last change is not yet in the bucket process's file.
        self._is_behind = False
        #: The last-use times of tokens, by token digest.
        self.uses: dict[str, Nanos] = dict(uses)
        self._unwritten: dict[str, Nanos] = {}
        self._refusals = FailureCounter(_DAY)
        self._changed = asyncio.Event()
        #: Called in a thread with the addresses of service accounts before they are deleted. Other parts of
        #: the service then remove their data about these accounts. May raise Unavailable.
        self.forget: Callable[[Collection[str]], object] = lambda _: None
        authority.on_use, authority.on_change = self._note_use, self._wake

    @property
    def book(self) -> AccessBook:
        return self._authority.book

    @property
    def has_issuers(self) -> bool:
        """Whether the service accepts ID tokens from at least one issuer."""
        return bool(self._authority.issuers)

    async def change(
        self,
        to: Callable[[AccessBook], AccessBook],
        project: str,
        resource: str,
        detail: Mapping[str, object] | None = None,
    ) -> AccessBook:
        """Change the access book with the function `to`, store the result, and return it.

        The change is in force when this method returns. If `to` raises an error, nothing is changed. Raise
        Unavailable if the change cannot be stored.

        These arguments are for the audit record:

        - project: the project of the change, or "" for the whole service.
        - resource: the name of the changed resource.
        - detail: a description of the change. `to` may extend it.
        """
        async with self._changing:
            book = to(self.book)
            if gone := self.book.accounts.keys() - book.accounts.keys():
                await asyncio.to_thread(self.forget, gone)
            stored = await asyncio.to_thread(documents, book)
            put = {name: text for name, text in stored.items() if self._stored.get(name) != text}
            removed = self._stored.keys() - stored.keys()
            audit.set_subject(project, resource)
            if detail and (call := audit.current_call()) is not None:
                call.record.detail = detail
            await self._store.change(put, removed)
            self._stored = stored
            self._authority.replace(book)
            try:
                await self._write_bucket_file()
            except OSError as error:
                raise Unavailable(
                    f"The change is stored, but {self._file} cannot be written ({error.strerror}), "
                    "so the buckets do not apply it yet. Free space on the disk; the buckets then "
                    "apply it within a minute."
                ) from error
            return book

    async def _write_bucket_file(self) -> None:
        """Write the current state to the bucket process's file. Raise OSError if the write fails.
        `write_uses` repeats a failed write."""
        self._is_behind = True
        await asyncio.to_thread(self._write_file, self._stored)
        self._is_behind = False

    def _write_file(self, stored: Documents) -> None:
        """Write the bucket process's file. The file is not synced to disk, because each start of the service
        writes it again."""
        content = msgspec.json.encode(AccessFile.of(self._owner, stored))
        durable.write(str(self._file), content, sync=False)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def lapse(self, principal: Principal) -> None:
        """Wait until a principal's permissions change, or its credentials become invalid. The principal's
        ongoing requests must then end."""
        while self._authority.is_valid(principal):
            ends = self._authority.expiry_of(principal)
            left = None if ends is None else max(0.0, (ends - self._now()) / 1e9)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def record(self) -> None:
        """Store the audit record of the current call, which has not changed anything. Raise Unavailable if
        the write fails."""
        if audit.current_call() is not None:
            await self._store.change({}, ())

    async def record_refusal(self) -> None:
        """Store an audit record of the current call, which was rejected for lack of permission. The last
        record of a user's day states that further rejected calls are not recorded."""
        if (call := audit.current_call()) is None:
            return
        count = self._refusals.count(call.record.who)
        if count <= REFUSALS:
            call.project, call.record.resource = (call.project[:63], call.record.resource[:_MAX_NAME_CHARS])
            call.record.detail = {"refusals": count, "seconds": _DAY} if count == REFUSALS else {}
            call.record.status = StatusCode.PERMISSION_DENIED.number
            with contextlib.suppress(Unavailable):
                await self.record()

    async def write_uses(self) -> None:
        """Write the last-use times of tokens at regular intervals. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(_USES_EVERY)
            await self.flush()
            async with self._changing:
                with contextlib.suppress(OSError):
                    if self._is_behind:
                        await self._write_bucket_file()

    async def flush(self) -> None:
        """Write the last-use times of tokens that are not yet written."""
        unwritten, self._unwritten = self._unwritten, {}
        if not unwritten:
            return
        try:
            await self._store.note_uses(unwritten)
        except Unavailable:
            log.warning("the times of the last use of tokens could not be stored")
            self._unwritten = unwritten | self._unwritten

    def _note_use(self, digest: str) -> None:
        self.uses[digest] = self._unwritten[digest] = self._now()
