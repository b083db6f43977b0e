"""Keeps resumable upload sessions, which survive the death of the process at any moment.

A session is a directory in the hidden part of the store: `session.json` (what is uploaded, and under which
conditions), `data` (the bytes so far; a rename makes it the object) and, from the commit on,
`commit.json` (the record of the object). Bytes are only appended, so the length of `data` tells what has
arrived. All methods block.
"""

import os
import re
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.access.principals import Bearer
from trainshed.buckets.content import BLOCK, UNKNOWN, Checksums, Digest, Staged, agreed, write_all
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import BucketsError, NoSuchUpload, Unavailable
from trainshed.buckets.port import ALWAYS, Conditions, Draft, ObjectRecord, ObjectRef
from trainshed.replica.system import durable

# The public service's limit: a session can be resumed for a week.
LIFETIME_NS = 7 * 24 * 3600 * 1_000_000_000
_EXPIRE_EVERY_NS = 3600 * 1_000_000_000
_KEPT_DIGESTS = 256
_ID = re.compile(r"[0-9a-f]{48}")


class UploadSpec(Struct, frozen=True):
    """What a session uploads: destination, properties, conditions, announced size in bytes, holds."""

    bucket: str
    name: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    expected: Checksums = UNKNOWN
    conditions: Conditions = ALWAYS
    total: int | None = None
    holds: tuple[str, ...] = ()
    #: The account whose signed URL started it, and its key: whoever has the session's id continues it with
    #: that account's rights. None = it has none.
    signer: tuple[str, str | None] | None = None

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.bucket, self.name, conditions=self.conditions)


class Committed(Struct, frozen=True):
    """A session whose object is stored, so that repeated requests get the same answer."""

    spec: UploadSpec
    record: ObjectRecord


class UploadSessions:
    """All sessions of a store. Safe to use from several threads."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = state_directory(store.root) / "uploads"
        self._root.mkdir(exist_ok=True)
        self._writers: dict[str, UploadWriter] = {}
        self._digests: dict[str, Digest] = {}
        self._lock = threading.Lock()
        #: Ids of the multipart uploads whose parts are put together now.
        self.completing: set[str] = set()
        self._expired_ns = 0

    def start(self, spec: UploadSpec) -> str:
        """Make a session, durably, and return its id. Raises what the commit would raise."""
        self._store.at(spec.bucket).precheck(spec.ref)
        if self._store.now() - self._expired_ns > _EXPIRE_EVERY_NS:
            self.expire()
        upload_id = os.urandom(24).hex()
        directory = self._root / upload_id
        directory.mkdir()
        os.close(os.open(directory / "data", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        durable.write(str(directory / "session.json"), msgspec.json.encode(spec), is_shared=True)
        durable.sync_directory(str(self._root))
        return upload_id

    def resume(self, bucket: str, upload_id: str) -> "UploadWriter | Committed":
        """Take over a session; its former writer cannot write any more.

        Raises `NotFound` for an id that is unknown, cancelled, too old or another bucket's.
        """
        directory, spec = self._session(bucket, upload_id)
        writer = UploadWriter(self, self._store, spec, directory)
        with self._lock:
            before = self._writers.get(upload_id)
            self._writers[upload_id] = writer
            digest = self._digests.pop(upload_id, None)
        if before is not None:
            digest = before.give_up() or digest
        committed = self._committed(spec, directory)
        if committed is not None:
            self.release(writer)
            return committed
        writer.open(digest)
        return writer

    def signer(self, bucket: str, upload_id: str) -> Bearer | None:
        """Returns the account whose signed URL started a session; None if none did. Raises `NotFound`."""
        signer = self._session(bucket, upload_id)[1].signer
        return Bearer(*signer) if signer else None

    def directory_of(self, bucket: str, upload_id: str) -> Path:
        """Returns the directory of a session's files. Raises `NotFound`."""
        return self._session(bucket, upload_id)[0]

    def cancel(self, bucket: str, upload_id: str) -> None:
        """Delete a session and its bytes. Raises `NotFound`."""
        directory = self.directory_of(bucket, upload_id)
        with self._lock:
            writer = self._writers.pop(upload_id, None)
        if writer is not None:
            writer.give_up()
        self.drop(directory)

    def expire(self) -> None:
        """Delete sessions that nobody has touched for a week. The store does so itself once an hour."""
        self._expired_ns = self._store.now()
        horizon = self._expired_ns - LIFETIME_NS
        for directory in self._root.iterdir():
            with suppress(FileNotFoundError):
                if directory.stat().st_mtime_ns < horizon:
                    self.drop(directory)

    def release(self, writer: "UploadWriter") -> None:
        """Called when a writer's request has ended; the checksum state is kept for the next one."""
        # Not under the lock: a commit in progress has the writer's own, and may need this one.
        digest = writer.give_up()
        with self._lock:
            if self._writers.get(writer.upload_id) is writer:
                del self._writers[writer.upload_id]
                if digest is not None:
                    self._digests[writer.upload_id] = digest
                if len(self._digests) > _KEPT_DIGESTS:
                    del self._digests[next(iter(self._digests))]

    def drop(self, directory: Path) -> None:
        with self._lock:
            self._digests.pop(directory.name, None)
        shutil.rmtree(directory, ignore_errors=True)

    def _session(self, bucket: str, upload_id: str) -> tuple[Path, UploadSpec]:
        """Returns a session's directory, and what it uploads. Raises `NotFound`."""
        directory = self._root / upload_id
        if _ID.fullmatch(upload_id):
            with suppress(FileNotFoundError):
                encoded = (directory / "session.json").read_bytes()
                spec = msgspec.json.decode(encoded, type=UploadSpec)
                # The request's permission is for the bucket that it names, not for another one's session.
                if spec.bucket == bucket:
                    return directory, spec
        raise _unknown(upload_id)

    def _committed(self, spec: UploadSpec, directory: Path) -> Committed | None:
        try:
            encoded = (directory / "commit.json").read_bytes()
        except FileNotFoundError:
            return None
        record = msgspec.json.decode(encoded, type=ObjectRecord)
        data = directory / "data"
        if data.exists():
            # The object was announced but perhaps not renamed (or linked, for a creation, and not yet
            # unlinked).
            try:
                stored = ObjectRef(spec.bucket, spec.name)
                current = self._store.at(spec.bucket).read_record(stored, hash_limit=0)
            except BucketsError:
                return None
            if current.generation != record.generation:
                return None
            data.unlink(missing_ok=True)
        return Committed(spec, record)


class UploadWriter:
    """One request's hold on a session: it appends bytes and, at the end, commits the object."""

    def __init__(
        self, sessions: UploadSessions, store: ObjectStore, spec: UploadSpec, directory: Path
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._directory = directory
        self._lock = threading.Lock()
        self._staged: Staged | None = None
        self._given_up = False
        self.spec = spec

    @property
    def upload_id(self) -> str:
        return self._directory.name

    @property
    def offset(self) -> int:
        """Bytes that have arrived."""
        return self._staged.digest.size if self._staged is not None else 0

    def open(self, digest: Digest | None) -> None:
        """Open the data; without a matching checksum state, hash what is there."""
        path = self._directory / "data"
        with self._lock:
            if self._given_up:
                self._require()
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError as error:
                raise _unknown(self.upload_id) from error
            self._staged = Staged(path, fd, Digest())
            if digest is not None and digest.size == os.fstat(fd).st_size:
                self._staged.digest = digest
            else:
                while block := os.read(fd, BLOCK):
                    self._staged.digest.update(block)
            os.lseek(fd, 0, os.SEEK_END)

    def write(self, block: bytes) -> None:
        """Append a block. Raises `Unavailable` if another request has taken the session over."""
        with self._lock:
            staged = self._require()
            write_all(staged.fd, block)
            staged.digest.update(block)

    def restart(self) -> None:
        """Begin again: drop what has arrived so far."""
        with self._lock:
            staged = self._require()
            os.ftruncate(staged.fd, 0)
            os.lseek(staged.fd, 0, os.SEEK_SET)
            staged.digest = Digest()

    def sync(self) -> None:
        """Make what has arrived durable, before it is acknowledged."""
        with self._lock:
            os.fsync(self._require().fd)

    def expect(self, sums: Checksums) -> None:
        """Add to the checksums that the object must have, durably. Raises InvalidRequest, after which the
        session is gone, if they contradict those announced before."""
        if sums == UNKNOWN:
            return
        try:
            self.spec = replace(self.spec, expected=agreed(self.spec.expected, sums))
        except BucketsError:
            self._sessions.drop(self._directory)
            raise
        text = msgspec.json.encode(self.spec)
        durable.write(str(self._directory / "session.json"), text, is_shared=True)

    def commit(self) -> ObjectRecord:
        """Make the session's bytes the object.

        A session whose commit is refused for good (checksum, precondition) is dropped.
        """
        spec = self.spec
        with self._lock:
            staged = self._require()
            try:
                record = self._store.at(spec.bucket).commit(
                    spec.ref,
                    staged,
                    Draft(spec.fields, spec.metadata, spec.expected, spec.holds),
                    announce=self._announce,
                )
            except BucketsError as error:
                if error.status < 500:
                    self._sessions.drop(self._directory)
                raise
            self._staged = None
        return record

    def give_up(self) -> Digest | None:
        """Release the session; returns the checksum state if it was still held."""
        with self._lock:
            self._given_up = True
            staged, self._staged = self._staged, None
            if staged is None:
                return None
            staged.close()
            return staged.digest

    def _announce(self, record: ObjectRecord) -> None:
        durable.write(
            str(self._directory / "commit.json"), msgspec.json.encode(record), is_shared=True
        )

    def _require(self) -> Staged:
        if self._staged is None:
            raise Unavailable(
                "This upload session was taken over by a newer request. Ask for its status "
                "(Content-Range: bytes */*) and go on from there."
            )
        return self._staged


def _unknown(upload_id: str) -> NoSuchUpload:
    return NoSuchUpload(f"No such upload session: {upload_id}. Start the upload again.")
