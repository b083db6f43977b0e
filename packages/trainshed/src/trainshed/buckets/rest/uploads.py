"""Stores resumable upload sessions. A session survives a crash of the process at any time.

A session is a directory in the hidden part of the store with these files:

- `session.json`: the destination and the conditions.
- `data`: the received bytes. The commit renames it to the object.
- `commit.json`: the object's record. It exists from the commit on.

Bytes are only appended, so the length of `data` is the number of received bytes. All methods block.
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
from trainshed.buckets.content import BLOCK, UNKNOWN, Checksums, Digest, Staged, merge_checksums, write_all
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import BucketsError, NoSuchUpload, Unavailable
from trainshed.buckets.port import ALWAYS, Conditions, Draft, ObjectRecord, ObjectRef
from trainshed.replica.system import durable

# A session expires after a week, as in the public service.
LIFETIME_NS = 7 * 24 * 3600 * 1_000_000_000
_EXPIRY_INTERVAL_NS = 3600 * 1_000_000_000
_MAX_DIGESTS = 256
_ID = re.compile(r"[0-9a-f]{48}")


class UploadSpec(Struct, frozen=True):
    """The properties of an upload: destination, metadata, conditions, announced size in bytes, holds."""

    bucket: str
    name: str
    fields: dict[str, str] = field(default_factory=dict[str, str])
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    expected: Checksums = UNKNOWN
    conditions: Conditions = ALWAYS
    total: int | None = None
    holds: tuple[str, ...] = ()
    #: The account and key of the signed URL that started the session. Any client with the session's ID may
    #: continue the upload with that account's permissions. None = no signed URL started the session.
    signer: tuple[str, str | None] | None = None

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.bucket, self.name, conditions=self.conditions)


class CommittedUpload(Struct, frozen=True):
    """A session whose object is stored. Repeated requests receive the same response."""

    spec: UploadSpec
    record: ObjectRecord


class UploadSessions:
    """All upload sessions of a store. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._root = state_directory(store.root) / "uploads"
        self._root.mkdir(exist_ok=True)
        self._writers: dict[str, UploadWriter] = {}
        self._digests: dict[str, Digest] = {}
        self._lock = threading.Lock()
        #: IDs of the multipart uploads that are being completed.
        self.completing: set[str] = set()
        self._last_expiry_ns = 0

    def start(self, spec: UploadSpec) -> str:
        """Create a session durably, and return its ID. Raises the errors that the commit would raise and that
        are already known."""
        self._store.bucket_store(spec.bucket).precheck(spec.ref)
        if self._store.now() - self._last_expiry_ns > _EXPIRY_INTERVAL_NS:
            self.expire()
        upload_id = os.urandom(24).hex()
        directory = self._root / upload_id
        directory.mkdir()
        os.close(os.open(directory / "data", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        durable.write(str(directory / "session.json"), msgspec.json.encode(spec), is_shared=True)
        durable.sync_directory(str(self._root))
        return upload_id

    def resume(self, bucket: str, upload_id: str) -> "UploadWriter | CommittedUpload":
        """Open a session for this request. An earlier request can then no longer write to the session. Raises
        `NotFound` if no session with this ID exists in the bucket, or if it was cancelled or has expired."""
        directory, spec = self._session(bucket, upload_id)
        writer = UploadWriter(self, self._store, spec, directory)
        with self._lock:
            previous = self._writers.get(upload_id)
            self._writers[upload_id] = writer
            digest = self._digests.pop(upload_id, None)
        if previous is not None:
            digest = previous.close() or digest
        committed = self._load_committed(spec, directory)
        if committed is not None:
            self.release(writer)
            return committed
        writer.open(digest)
        return writer

    def signer(self, bucket: str, upload_id: str) -> Bearer | None:
        """Return the account of the signed URL that started a session; None = no signed URL. Raises
        `NotFound`."""
        signer = self._session(bucket, upload_id)[1].signer
        return Bearer(*signer) if signer else None

    def directory_of(self, bucket: str, upload_id: str) -> Path:
        """Return the directory with a session's files. Raises `NotFound`."""
        return self._session(bucket, upload_id)[0]

    def cancel(self, bucket: str, upload_id: str) -> None:
        """Delete a session and its bytes. Raises `NotFound`."""
        directory = self.directory_of(bucket, upload_id)
        with self._lock:
            writer = self._writers.pop(upload_id, None)
        if writer is not None:
            writer.close()
        self.drop(directory)

    def expire(self) -> None:
        """Delete sessions without activity for a week. `start` calls this method at most once an hour."""
        self._last_expiry_ns = self._store.now()
        horizon = self._last_expiry_ns - LIFETIME_NS
        for directory in self._root.iterdir():
            with suppress(FileNotFoundError):
                if directory.stat().st_mtime_ns < horizon:
                    self.drop(directory)

    def release(self, writer: "UploadWriter") -> None:
        """End a request's access to a session. The checksum state is kept for the session's next request."""
        # Do not hold `self._lock` here, because `close` waits for the writer's lock. A commit in progress
        # holds the writer's lock and may need `self._lock`.
        digest = writer.close()
        with self._lock:
            if self._writers.get(writer.upload_id) is writer:
                del self._writers[writer.upload_id]
                if digest is not None:
                    self._digests[writer.upload_id] = digest
                if len(self._digests) > _MAX_DIGESTS:
                    del self._digests[next(iter(self._digests))]

    def drop(self, directory: Path) -> None:
        with self._lock:
            self._digests.pop(directory.name, None)
        shutil.rmtree(directory, ignore_errors=True)

    def _session(self, bucket: str, upload_id: str) -> tuple[Path, UploadSpec]:
        """Return the directory and properties of a session. Raises `NotFound`."""
        directory = self._root / upload_id
        if _ID.fullmatch(upload_id):
            with suppress(FileNotFoundError):
                encoded = (directory / "session.json").read_bytes()
                spec = msgspec.json.decode(encoded, type=UploadSpec)
                # Accept only a session of the bucket in the request's URL: the request has permissions for no
                # other bucket (confused deputy).
                if spec.bucket == bucket:
                    return directory, spec
        raise _unknown_session(upload_id)

    def _load_committed(self, spec: UploadSpec, directory: Path) -> CommittedUpload | None:
        try:
            encoded = (directory / "commit.json").read_bytes()
        except FileNotFoundError:
            return None
        record = msgspec.json.decode(encoded, type=ObjectRecord)
        data = directory / "data"
        if data.exists():
            # A crash may have occurred between the writing of the record and the rename of the data. If the
            # object has the record's generation, the commit succeeded: a creation links the file `data` to
            # the object's name, and then removes the name `data`.
            try:
                stored = ObjectRef(spec.bucket, spec.name)
                current = self._store.bucket_store(spec.bucket).read_record(stored, hash_limit=0)
            except BucketsError:
                return None
            if current.generation != record.generation:
                return None
            data.unlink(missing_ok=True)
        return CommittedUpload(spec, record)


class UploadWriter:
    """The access of one request to a session. It appends bytes and finally commits the object."""

    def __init__(
        self, sessions: UploadSessions, store: ObjectStore, spec: UploadSpec, directory: Path
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._directory = directory
        self._lock = threading.Lock()
        self._staged: Staged | None = None
        self._is_closed = False
        self.spec = spec

    @property
    def upload_id(self) -> str:
        return self._directory.name

    @property
    def offset(self) -> int:
        """The number of received bytes."""
        return self._staged.digest.size if self._staged is not None else 0

    def open(self, digest: Digest | None) -> None:
        """Open the data file. `digest`: the checksum state of an earlier request. If it does not cover all
        existing bytes, they are hashed again."""
        path = self._directory / "data"
        with self._lock:
            if self._is_closed:
                self._require()
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError as error:
                raise _unknown_session(self.upload_id) from error
            self._staged = Staged(path, fd, Digest())
            if digest is not None and digest.size == os.fstat(fd).st_size:
                self._staged.digest = digest
            else:
                while block := os.read(fd, BLOCK):
                    self._staged.digest.update(block)
            os.lseek(fd, 0, os.SEEK_END)

    def write(self, block: bytes) -> None:
        """Append a block. Raises `Unavailable` if another request has taken over the session."""
        with self._lock:
            staged = self._require()
            write_all(staged.fd, block)
            staged.digest.update(block)

    def restart(self) -> None:
        """Delete all received bytes."""
        with self._lock:
            staged = self._require()
            os.ftruncate(staged.fd, 0)
            os.lseek(staged.fd, 0, os.SEEK_SET)
            staged.digest = Digest()

    def sync(self) -> None:
        """Make the received bytes durable, before the client gets an acknowledgment."""
        with self._lock:
            os.fsync(self._require().fd)

    def expect(self, sums: Checksums) -> None:
        """Add expected checksums of the object, durably. If they contradict earlier ones, delete the session
        and raise InvalidRequest."""
        if sums == UNKNOWN:
            return
        try:
            self.spec = replace(self.spec, expected=merge_checksums(self.spec.expected, sums))
        except BucketsError:
            self._sessions.drop(self._directory)
            raise
        text = msgspec.json.encode(self.spec)
        durable.write(str(self._directory / "session.json"), text, is_shared=True)

    def commit(self) -> ObjectRecord:
        """Turn the session's bytes into the object. If the commit fails permanently (checksum, precondition),
        the session is deleted."""
        spec = self.spec
        with self._lock:
            staged = self._require()
            try:
                record = self._store.bucket_store(spec.bucket).commit(
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

    def close(self) -> Digest | None:
        """Close the data file and return the checksum state. Return None if the object was committed, or if
        another request has taken over the session."""
        with self._lock:
            self._is_closed = True
            staged, self._staged = self._staged, None
            if staged is None:
                return None
            staged.close()
            return staged.digest

    def _announce(self, record: ObjectRecord) -> None:
        durable.write(str(self._directory / "commit.json"), msgspec.json.encode(record), is_shared=True)

    def _require(self) -> Staged:
        if self._staged is None:
            raise Unavailable(
                "A newer request has taken over this upload session. Query its status "
                "(Content-Range: bytes */*) and continue from there."
            )
        return self._staged


def _unknown_session(upload_id: str) -> NoSuchUpload:
    return NoSuchUpload(f"No such upload session: {upload_id}. Start the upload again.")
