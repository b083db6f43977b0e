"""A service without an engine: the API over a real SQLite store and real log files, in one process.

The test acts as the controller: it applies events to jobs with the real state machine and commits
through the real ledger.
"""

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from msgspec.structs import replace

from tests.contract.api.fake_capacity import FakeCapacity
from tests.contract.api.memory_files import MemoryFiles
from tests.people import create_authority
from tests.unit.specs_requests import FakeRuntimes
from trainshed.access.issuers import Issuer
from trainshed.access.job_tokens import JobTokens
from trainshed.access.sealing import Sealer
from trainshed.access.tokens import digest_of
from trainshed.api.additions import AdditionContext, registry_with
from trainshed.api.calls.links import Links, Tickets
from trainshed.api.calls.services import ApiSettings, Authenticate, ContentDigest, Services
from trainshed.api.rest import ApiApplication
from trainshed.controller.capacity import CapacityTracker
from trainshed.controller.exports import ExportWorker
from trainshed.controller.reservations import Reservations
from trainshed.core.lifecycle.events import Event, JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.replica_events import ReplicaStarted
from trainshed.core.names import JobName, JobUid, ReplicaId
from trainshed.core.study.records import StudyUid
from trainshed.core.study.spec import StudySpec
from trainshed.core.terminals import NoTerminals
from trainshed.core.units import Bytes
from trainshed.engines.streams import FileStreams, ServiceStreams
from trainshed.httpd.hosts import Hosts
from trainshed.httpd.messages import Application, Lapse, Request, Response, sized_response
from trainshed.scheduler.model import Policy
from trainshed.serve.issuers import Issuers
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.logs.reader import LogReader
from trainshed.store.notices import Notices
from trainshed.store.points import POINTS, PointFiles
from trainshed.store.port import Commit, NewWork
from trainshed.store.sqlite.database import Store, open_database
from trainshed.studies.port import TrialData
from trainshed.summaries.directories import LogDirectory
from trainshed.wire.trainshed_v1.jobs import Outlook
from trainshed_pipelines import addition as pipelines
from trainshed_tracking.addition import addition_with

ADDRESS = "http://trainshed.example"
SETTINGS = ApiSettings("0.0.1", "trainshed", "us-central1", ADDRESS)
SECOND = 10**9
START = 1_760_000_000 * SECOND
SIGN_IN_KEY = b"the key of browsers that sign in"
HOSTS = Hosts(("trainshed.example", "*.googleapis.com"))
LOCATION = "/v1/projects/p1/locations/us-central1"


@dataclass
class Buckets:
    locations: dict[str, str] = field(default_factory=lambda: {"bucket": "US", "theirs": "US", "afar": "US"})
    #: The project of each bucket that a test created.
    projects: dict[str, str] = field(default_factory=dict[str, str])
    #: The contents of packages by URI; None for a package that does not exist.
    contents: dict[str, str | None] = field(default_factory=dict[str, str | None])

    def ensure(self, name: str, location: str, project: str) -> None:
        self.locations[name] = location
        self.projects[name] = project

    def bucket_location(self, name: str) -> str | None:
        return self.locations.get(name)

    def is_closed(self, name: str, project: str, account: str | None = None) -> bool:
        return {"theirs": "theirs", **self.projects}.get(name, project) != project

    def is_unmounted(self, name: str) -> bool:
        return name == "afar"

    def visible_buckets(self, project: str) -> tuple[tuple[str, str], ...]:
        return ((f"of-{project}", "/data/buckets/now"),)

    def has_object(self, uri: str) -> bool:
        return "missing" not in uri

    def make_directory(self, uri: str) -> None:
        """Do nothing: these buckets have no directories."""

    def last_written(self, uri: str) -> int:
        return int("missing" not in uri)

    def open(self, uri: str) -> BinaryIO:
        if (content := self.contents.get(uri)) is None:
            raise FileNotFoundError(uri)
        return io.BytesIO(content.encode())

    def digest(self, uri: str, limit: Bytes) -> ContentDigest:
        """Return the digest of a package. Its content is its own URI unless the test sets another content."""
        content = self.contents.get(uri, uri)
        if content is None:
            return ContentDigest(unknown="is not there yet")
        return ContentDigest(hashlib.sha256(content.encode()).hexdigest(), Bytes(len(content)))


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]


class FakeTensorBoards:
    """Stands in for TensorBoard processes: has event files where the test sets them, and echoes
    each request."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        #: The lapse of each forwarded request, which ends its response.
        self.lapses: list[Lapse] = []

    async def has_files(self, directories: Sequence[LogDirectory]) -> bool:
        return any(directory.uri in self.written for directory in directories)

    async def open(
        self, name: str, directories: Sequence[LogDirectory], report: Callable[[str], None]
    ) -> None:
        report("Starting.")

    async def forward(
        self, name: str, directories: Sequence[LogDirectory], request: Request, lapse: Lapse
    ) -> Response:
        self.lapses.append(lapse)
        return sized_response(f"{name} {request.path}".encode(), b"text/plain")

    def end(self, wanted: Callable[[str], bool]) -> None:
        """Do nothing: no process runs."""

    async def close(self) -> None:
        """Do nothing: no process runs."""


class ApiService:
    """One data directory with everything the API needs. `clock` changes only when a test sets it."""

    def __init__(self, directory: Path, *, issuers: Sequence[Issuer] = ()) -> None:
        self.clock = START
        self.woken: list[JobUid] = []
        self.asked: list[StudyUid] = []
        #: Lines that programs wrote to their logs through the API.
        self.written: list[tuple[JobUid, int, ReplicaId, list[str]]] = []
        self.buckets = Buckets()
        self.log_root = directory / "logs"
        self.store: Store = open_database(directory / "data")
        self.viewers = FakeTensorBoards()
        self.capacity = FakeCapacity(self.store.reader)
        self.points = PointFiles(directory / "data" / POINTS)
        self.notices = Notices()
        self.files = MemoryFiles()
        #: The scheduler's capacity tracker for persistent resources. The tests set its nodes.
        self.tracker = CapacityTracker(Policy(strict=True), lambda _: None, lambda _: None)
        self.reservations = Reservations(
            self.store.persistent_resources,
            self.tracker,
            self.notices,
            now=self.now,
            decide=self.decide,
            report=lambda uid, event: None,
            cancel=self.cancel_for,
        )
        self.exports = self.export_worker()
        self._uids = iter(range(1_000, 10**9))
        self.jobs = JobTokens(b"the key of all tests, which no service has"[:32], self.now)
        self.tokens, self.token = create_authority(self.now, self.jobs)
        self.tokens.hosts = HOSTS
        owner = digest_of(self.token)
        self.keeper = AccessKeeper(self.store.access, self.tokens, owner, directory, self.now)
        self.issuers = Issuers(issuers, self.keeper, self.now)
        self.tokens.issuers = self.issuers.marks
        self.services = Services(
            intake=self.store.intake,
            reader=self.store.reader,
            studies=self.store.studies,
            models=self.store.models,
            evaluations=self.store.evaluations,
            datasets=self.store.datasets,
            curves=self.store.curves,
            points=self.points,
            secrets=self.store.secrets,
            sealer=Sealer(directory / "secrets.key", {}),
            access=self.keeper,
            logs=LogReader(FileStreams(self.log_root), ServiceStreams(self.log_root)),
            notices=self.notices,
            runtimes=FakeRuntimes(),
            buckets=self.buckets,
            now=self.now,
            new_uid=lambda: JobUid(next(self._uids)),
            wake=self.woken.append,
            create=self.create,
            suggest=self.asked.append,
            exports=self.exports,
            outlook=_compute_outlook,
            capacity=self.capacity,
            reservations=self.reservations,
            links=Links(b"key of the service", ADDRESS, self.now),
            tickets=Tickets(self.now),
            shells=NoTerminals(),
            allows_shells=False,
            write_log=self.write,
            settings=SETTINGS,
        )
        context = self.addition_context(directory)
        tracking = addition_with(context, self.viewers)
        self.services = replace(self.services, tracking=tracking.tracking)
        self.pipelines = pipelines.new_addition(context)
        self.registry = registry_with({"tracking": tracking, "pipelines": self.pipelines})
        self.mounts: Mapping[str, Application] = tracking.mounts(self.services, self.registry)
        self.app = self.application()
        self._epoch = 0

    def application(
        self, mounts: Mapping[str, Application] | None = None, authenticate: Authenticate | None = None
    ) -> ApiApplication:
        """Return the API with its addition and further applications."""
        return ApiApplication(
            self.services,
            authenticate or self.issuers.authenticate,
            {**self.mounts, **(mounts or {})},
            hosts=HOSTS,
            registry=self.registry,
        )

    def addition_context(self, directory: Path) -> AdditionContext:
        """Return the context for the constructor of an addition of this service."""
        return AdditionContext(
            settings=ApiSettings("0.0.1", "p1", "us-central1", ADDRESS),
            data=directory,
            now=self.now,
            closing=self.services.closing,
            tokens=self.tokens,
            authenticate=self.issuers.authenticate,
            issuers=self.issuers,
            sign_in_key=SIGN_IN_KEY,
            gateway=directory / "nobody-listens.sock",
            access=self.keeper,
            links=self.services.links,
            store=self.store,
            points=self.points,
            new_uid=self.services.new_uid,
            # No addition under test builds or shows a runtime.
            runtimes=cast("Any", None),
            terms=cast("Any", None),
            event_files=lambda directory: None,
        )

    def export_worker(self) -> ExportWorker:
        """Return the export worker of a service that is starting."""
        return ExportWorker(self.store.studies, self.files, self.notices, self.now)

    def decide(self) -> None:
        """Run one decision for persistent resources, like `controller.decisions.Decisions`."""
        self.reservations.check()
        for decision in self.tracker.decide(self.clock):
            self.reservations.apply_decision(decision)

    async def cancel_for(self, uid: JobUid, email: str) -> None:
        """Do nothing: no test of this folder has a job on a persistent resource."""

    def now(self) -> int:
        return self.clock

    async def create(self, *made: NewWork) -> None:
        """Store new work like a controller that never decides anything."""
        await self.store.intake.create(*made)
        self.woken += [new.job.uid for new in made]

    async def write(self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]) -> None:
        """Record log lines, like an engine (`WriteLog`)."""
        self.written.append((job_uid, attempt, replica, list(lines)))

    def close(self) -> None:
        self.store.close()

    def serve(self, **services: Any) -> None:
        """Replace services and build the application again."""
        self.services = replace(self.services, **services)
        self.app = self.application()

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = "",
        headers: Iterable[tuple[str, str]] = (),
        before_body: Callable[[], object] = lambda: None,
    ) -> Answer:
        """Send one request and return its complete response. `body` is sent as JSON unless it is bytes. If
        `token` is None, no token is sent. `before_body` runs after the headers were sent and before the body
        is sent."""
        sent: list[Any] = []
        scope = self._scope(method, path, token, headers)
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        messages = iter([{"type": "http.request", "body": data, "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(messages, None)
            if message is None:
                await asyncio.Event().wait()
            assert message is not None
            before_body()
            return message

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        response_headers = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return Answer(
            sent[0]["status"], response_headers, b"".join(part.get("body", b"") for part in sent[1:])
        )

    async def result(self, method: str, path: str, body: object = None, *, token: str | None = "") -> Any:
        """Send a request that must succeed, and return its JSON."""
        answer = await self.call(method, path, body, token=token)
        assert answer.status == 200, answer.body
        return answer.json

    @asynccontextmanager
    async def stream(self, path: str, token: str = "") -> AsyncGenerator["Lines"]:
        """Open a stream. Leaving the context disconnects, as a client does."""
        lines = Lines()
        task = asyncio.create_task(self.app(self._scope("GET", path, token, ()), lines.receive, lines.send))
        try:
            yield lines
        finally:
            lines.hang_up()
            await task

    def _scope(
        self, method: str, path: str, token: str | None, headers: Iterable[tuple[str, str]]
    ) -> dict[str, Any]:
        raw, _, query = path.partition("?")
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
        if token is not None:
            pairs.append((b"authorization", f"Bearer {token or self.token}".encode()))
        return {
            "type": "http",
            "method": method,
            "path": raw.replace("%2F", "/"),
            "raw_path": raw.encode(),
            "query_string": query.encode(),
            "headers": pairs if b"host" in dict(pairs) else [(b"host", b"trainshed.example"), *pairs],
            "scheme": "http",
            "client": ("127.0.0.1", 1),
        }

    async def apply_events(self, name: str, *events: Event) -> Job:
        """Act as the controller: apply events to a job, commit each step, and notify waiting streams. A job
        that is admitted without placements gets all of its replicas placed on `node-a`."""
        uid = (await self.store.reader.job(JobName.parse(name)))[0].uid
        self._epoch = self._epoch or await self.store.ledger.acquire("test")
        job = None
        for event in events:
            live = await self.store.ledger.load(uid)
            assert live is not None, f"{name} is over"
            assert isinstance(live.job, Job), f"{name} runs no replicas"
            stepped = step(live.job, _add_placement(event, live.job), self.clock)
            job = stepped.job
            seen = max((intent.seq for intent in live.intents), default=0)
            await self.store.ledger.commit(
                self._epoch, Commit(stepped.job, live.generation, stepped.timeline, seen)
            )
            self.notices.publish(uid)
        assert job is not None
        return job

    async def run(self, name: str, *then: Event, at: int = 0) -> Job:
        """Start all replicas of a job at the time `at` (0: now), then apply further events."""
        job = await self.apply_events(name, JobAdmitted(()), RuntimePrepared(1))
        starts = (ReplicaStarted(1, replica.id, 1, at or self.clock) for replica in job.replicas)
        return await self.apply_events(name, *starts, *then)

    async def update_job(self, name: str, commit: Mapping[str, Any] | None = None, **changes: Any) -> None:
        """Act as the controller of a tuning job or pipeline: commit the job with `changes` of its
        fields and with the other fields of a Commit in `commit`. Notify waiting streams."""
        uid = (await self.store.reader.job(JobName.parse(name)))[0].uid
        self._epoch = self._epoch or await self.store.ledger.acquire("test")
        live = await self.store.ledger.load(uid)
        assert live is not None, f"{name} is over"
        seen = max((intent.seq for intent in live.intents), default=0)
        changed = replace(live.job, **changes)
        await self.store.ledger.commit(
            self._epoch, Commit(changed, live.generation, consumed_intents=seen, **commit or {})
        )
        self.notices.publish(uid)

    def write_log(self, uid: int, replica: str, *lines: tuple[int, str], stream: str = "o") -> None:
        """Append lines (time, text) to a replica's log segment, as its shim does."""
        directory = self.log_root / str(uid) / "1" / replica
        directory.mkdir(parents=True, exist_ok=True)
        segment = directory / "000000000000.jsonl"
        first = len(segment.read_text().splitlines()) if segment.exists() else 0
        with segment.open("a") as file:
            for n, (at, text) in enumerate(lines, first):
                file.write(json.dumps({"n": n, "t": at, "s": stream, "m": text}) + "\n")
        self.notices.publish(JobUid(uid))


async def _compute_outlook(
    spec: StudySpec, trials: Sequence[TrialData], parameters: Sequence[str]
) -> Outlook:
    """Return a study\'s outlook. The real service computes it in its advisor process."""
    from trainshed.studies.gp.bandit import outlook

    return outlook(spec, trials, parameters)


def _add_placement(event: Event, job: Job) -> Event:
    if event != JobAdmitted(()):
        return event
    return JobAdmitted(tuple((replica, "node-a") for replica in job.spec.replicas()))


class Lines:
    """The client's end of a stream of lines."""

    def __init__(self) -> None:
        self.status = 0
        self.signs_of_life = 0
        self._arrived: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._left: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if body := message.get("body"):
            self.signs_of_life += body == b"\n"
            self._arrived.put_nowait(body)
        if not message.get("more_body"):
            self._arrived.put_nowait(None)

    async def next(self) -> Any:
        """Return the next line's value, or None at the end of the stream."""
        while not self._left:
            chunk = await asyncio.wait_for(self._arrived.get(), 60)
            if chunk is None:
                return None
            self._left = [json.loads(line) for line in chunk.splitlines() if line]
        return self._left.pop(0)

    def __aiter__(self) -> "Lines":
        return self

    async def __anext__(self) -> Any:
        line = await self.next()
        if line is None:
            raise StopAsyncIteration
        return line

    def hang_up(self) -> None:
        self._gone.set()
