"""Stores changes of users, roles and tokens (the access book), one at a time and each with its audit record.
A change is in force when its call returns."""

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
"""Seconds between two writes of the times at which tokens were last used."""
_DAY = 24 * 3600.0
REFUSALS = 50
"""Maximum number of recorded rejected calls of one user per day, so that a flood of them cannot fill the
disk."""
_MAX_NAME_CHARS = 120
"""Maximum number of characters of the names in a rejected call, which may contain any text."""


class AccessKeeper:
    """Stores the users, service accounts and their permissions. All methods are called on the event loop."""

    def __init__(
        self,
        store: Access,
        authority: TokenAuthority,
        owner: str,
        data: Path,
        now: Callable[[], int],
    ) -> None:
        """`owner`: the digest of the owner's token. `data`: the directory with the file for the bucket
        process."""
        self._store = store
        self._authority = authority
        self.authenticate, self.principal_of = authority.authenticate, authority.principal_of
        self.current_principal, self.mint = authority.current_principal, authority.mint
        self.origin_of, self.revalidate = authority.origin_of, authority.revalidate
        self.is_valid, self.read_assertion = authority.is_valid, authority.read_assertion
        self.audited = store.audited
        self._owner = owner
        self._file = data / FILE
        self._now = now
        self._changing = asyncio.Lock()
        stored, uses = store.load()
        self._stored = dict(stored)
        #: Whether a change could not be written to the file for the bucket process.
        self._is_behind = False
        #: The times at which tokens were last used, by token digest.
        self.uses: dict[str, Nanos] = dict(uses)
        self._unwritten: dict[str, Nanos] = {}
        self._refusals = FailureCounter(_DAY)
        self._changed = asyncio.Event()
        #: Called in a thread with the addresses of service accounts before they are deleted, so that other
        #: parts can remove data about them. May raise Unavailable.
        self.forget: Callable[[Collection[str]], object] = lambda _: None
        authority.on_use, authority.on_change = self._note_use, self._wake

    @property
    def book(self) -> AccessBook:
        return self._authority.book

    @property
    def has_issuers(self) -> bool:
        """Whether the service accepts ID tokens of an issuer."""
        return bool(self._authority.issuers)

    async def change(
        self,
        to: Callable[[AccessBook], AccessBook],
        project: str,
        resource: str,
        detail: Mapping[str, object] | None = None,
    ) -> AccessBook:
        """Store the result of the function `to`, which changes the access book, and return it.

        The change is in force when this method returns. For the audit record: `project` is the project of the
        change, or "" for the whole service. `resource` is the name of the changed resource. `detail`
        describes the change, and `to` may extend it. Errors of `to` are raised here, and nothing is changed.
        Raise Unavailable if the change cannot be stored.
        """
        async with self._changing:
            book = to(self.book)
            if gone := self.book.accounts.keys() - book.accounts.keys():
                await asyncio.to_thread(self.forget, gone)
            stored = await asyncio.to_thread(documents, book)
            put = {name: text for name, text in stored.items() if self._stored.get(name) != text}
            removed = self._stored.keys() - stored.keys()
            audit.concerns(project, resource)
            if detail and (call := audit.under_way()) is not None:
                call.record.detail = detail
            await self._store.change(put, removed)
            self._stored = stored
            self._authority.replace(book)
            try:
                await self._tell_buckets()
            except OSError as error:
                raise Unavailable(
                    f"The change is stored, but {self._file} cannot be written ({error.strerror}), "
                    "so the buckets do not apply it yet. Free space on the disk; the buckets then "
                    "apply it within a minute."
                ) from error
            return book

    async def _tell_buckets(self) -> None:
        """Write a change to the file for the bucket process. Raise OSError. `write_uses` repeats a failed
        write."""
        self._is_behind = True
        await asyncio.to_thread(self._write_file, self._stored)
        self._is_behind = False

    def _write_file(self, stored: Documents) -> None:
        """Write the file for the bucket process. The file is not synced to disk, because each start of the
        service writes it again."""
        content = msgspec.json.encode(AccessFile.of(self._owner, stored))
        durable.write(str(self._file), content, sync=False)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def lapse(self, principal: Principal) -> None:
        """Return when a principal's permissions change, or its credentials become invalid. Its ongoing work
        must end then."""
        while self._authority.is_valid(principal):
            ends = self._authority.expiry_of(principal)
            left = None if ends is None else max(0.0, (ends - self._now()) / 1e9)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)

    async def record(self) -> None:
        """Store the audit record of the current call, which has changed nothing. Raise Unavailable."""
        if audit.under_way() is not None:
            await self._store.change({}, ())

    async def record_refusal(self) -> None:
        """Store an audit record of the current call, for which the caller had no permission. The last record
        of a caller's day states that no more follow."""
        if (call := audit.under_way()) is None:
            return
        count = self._refusals.count(call.record.who)
        if count <= REFUSALS:
            call.project, call.record.resource = (
                call.project[:63],
                call.record.resource[:_MAX_NAME_CHARS],
            )
            call.record.detail = {"refusals": count, "seconds": _DAY} if count == REFUSALS else {}
            call.record.status = StatusCode.PERMISSION_DENIED.number
            with contextlib.suppress(Unavailable):
                await self.record()

    async def write_uses(self) -> None:
        """Write the times at which tokens were last used, at regular intervals. Runs until it is
        cancelled."""
        while True:
            await asyncio.sleep(_USES_EVERY)
            await self.flush()
            async with self._changing:
                with contextlib.suppress(OSError):
                    if self._is_behind:
                        await self._tell_buckets()

    async def flush(self) -> None:
        """Write the unwritten times of token uses immediately."""
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
