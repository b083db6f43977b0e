"""The metadata endpoint of a program's replica (spec/program#credentials, spec/clients#metadata)."""

import asyncio
import json
from typing import Any

import pytest

from trainshed.access.job_tokens import JobClaims, JobTokens
from trainshed.buckets.callers import Caller, Machine, read_preamble
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.notices import Notices
from trainshed.core.names import project_number
from trainshed.httpd.messages import Disconnected, Message, Request, Response

EMAIL = "trainer@p1.iam.gserviceaccount.com"
FLAVOR = {"metadata-flavor": "Google"}
V1 = "/computeMetadata/v1"
ACCOUNT = f"{V1}/instance/service-accounts/default"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


NUMBER = project_number("p1")
TOKENS = JobTokens(bytes(32), lambda: 1_760_000_000 * 10**9)
CLAIMS = JobClaims(1234567890123, 2, "workerpool1-3", "p1", EMAIL)


MACHINE = Machine(None, "n1-standard-4", address="10.128.0.7")


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def metadata(notices: Notices) -> Metadata:
    return Metadata(TOKENS, lambda _: None, notices)


class DisconnectingClient:
    """A client whose connection is open until `leave` is called."""

    def __init__(self, path: str, query: str = "", method: str = "GET", **headers: str) -> None:
        pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
        self._gone = asyncio.Event()
        self._messages: list[Message] = [{"type": "http.request"}]
        scope = {"method": method, "path": path, "query_string": query.encode(), "headers": pairs}
        self.request = Request(scope, self._receive)

    def leave(self) -> None:
        self._gone.set()

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}


async def answer_to(
    metadata: Metadata, client: DisconnectingClient, machine: Machine = MACHINE
) -> Response | None:
    caller = Caller(EMAIL, program=CLAIMS, machine=machine)
    return await metadata.answer(client.request, client.request.path, caller)


def get_metadata(
    metadata: Metadata, path: str, query: str = "", *, machine: Machine = MACHINE, **more: Any
) -> Response:
    client = DisconnectingClient(path, query, more.pop("method", "GET"), **more.pop("headers", FLAVOR))
    answer = asyncio.run(answer_to(metadata, client, machine))
    assert answer is not None and dict(answer.headers)[b"metadata-flavor"] == b"Google"
    assert dict(answer.headers)[b"content-length"] == b"%d" % len(answer.body)
    return answer


def text(metadata: Metadata, path: str, query: str = "") -> str:
    answer = get_metadata(metadata, path, query)
    assert answer.status == 200, answer.body
    assert dict(answer.headers)[b"content-type"] in (b"application/text", b"text/html")
    return answer.body.decode()


def get_json(metadata: Metadata, path: str, query: str = "") -> Any:
    answer = get_metadata(metadata, path, query)
    assert answer.status == 200, answer.body
    assert dict(answer.headers)[b"content-type"] == b"application/json"
    return json.loads(answer.body)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "computeMetadata/\n"),
        ("/", "computeMetadata/\n"),
        ("/computeMetadata/", "v1/\n"),
        (V1, "instance/\nproject/\nuniverse/\n"),
        (f"{V1}/", "instance/\nproject/\nuniverse/\n"),
        (f"{V1}/project/project-id", "p1"),
        (f"{V1}/project/numeric-project-id", str(project_number("p1"))),
        (f"{V1}/project/attributes/", ""),
        (f"{V1}/universe/universe-domain", "googleapis.com"),
        (f"{V1}/instance/service-accounts/", f"{EMAIL}/\ndefault/\n"),
        (f"{ACCOUNT}/", "aliases\nemail\nidentity\nscopes\ntoken\n"),
        (f"{ACCOUNT}/email", EMAIL),
        (f"{ACCOUNT}/aliases", "default\n"),
        (f"{ACCOUNT}/scopes", f"{SCOPE}\n"),
        (f"{V1}/instance/service-accounts/{EMAIL}/email", EMAIL),
        (f"{V1}/instance/preempted", "FALSE"),
        (f"{V1}/instance/maintenance-event", "NONE"),
        (f"{V1}/instance/attributes/", ""),
        (f"{V1}/instance/guest-attributes/", ""),
        (f"{V1}/instance/disks/", "0/\n"),
        (f"{V1}/instance/disks/0/mode", "READ_WRITE"),
        (f"{V1}/instance/licenses/", ""),
        (f"{V1}/instance/machine-type", f"projects/{NUMBER}/machineTypes/n1-standard-4"),
        (f"{V1}/instance/network-interfaces/", "0/\n"),
        (f"{V1}/instance/network-interfaces/0/ip", "10.128.0.7"),
        (f"{V1}/instance/network-interfaces/0/mac", "42:01:0a:80:00:07"),
        (f"{V1}/instance/network-interfaces/0/dns-servers", "169.254.169.254\n"),
        (f"{V1}/instance/network-interfaces/0/access-configs/0/external-ip", ""),
        (f"{V1}/instance/network-interfaces/0/forwarded-ips/", ""),
        (f"{V1}/instance/scheduling/", "automatic-restart\non-host-maintenance\npreemptible\n"),
        (f"{V1}/instance/scheduling/preemptible", "FALSE"),
        (f"{V1}/instance/virtual-clock/drift-token", "0"),
    ],
)
def test_metadata_server_returns_values_and_directory_listings(
    metadata: Metadata, path: str, expected: str
) -> None:
    assert text(metadata, path) == expected


def test_metadata_contains_region_and_zone_of_the_job(metadata: Metadata) -> None:
    """Clients derive the region from the zone."""
    job = {"project": "p1", "job_uid": "7", "replica": "workerpool1-3", "service_account": EMAIL}
    caller = read_preamble(json.dumps(job | {"region": "europe-west4"}).encode()).caller
    number = project_number("p1")
    for name, expected in (
        ("zone", f"projects/{number}/zones/europe-west4-b"),
        ("region", f"projects/{number}/regions/europe-west4"),
    ):
        path = f"{V1}/instance/{name}"
        answer = get_metadata(metadata, path, machine=caller.machine)
        assert (answer.status, answer.body.decode()) == (200, expected)
        # Not set by any caller.
        assert get_metadata(metadata, path).status == 404


def test_metadata_server_returns_an_access_token_for_any_requested_scopes(metadata: Metadata) -> None:
    for account in ("default", EMAIL):
        path = f"{V1}/instance/service-accounts/{account}/token"
        shown = get_json(metadata, path, f"scopes={SCOPE}")
        assert TOKENS.read(shown["access_token"]) == CLAIMS
        assert (shown["expires_in"], shown["token_type"]) == (3600, "Bearer")


def test_recursive_metadata_request_returns_the_whole_tree(metadata: Metadata) -> None:
    whole = get_json(metadata, f"{V1}/", "recursive=true")
    number = project_number("p1")
    assert whole["project"] == {"attributes": {}, "numericProjectId": number, "projectId": "p1"}
    assert set(whole["instance"]["serviceAccounts"]) == {EMAIL, "default"}
    assert whole["instance"]["name"].endswith("-3")
    assert whole["instance"]["hostname"] == f"{whole['instance']['name']}.c.p1.internal"
    assert 0 < whole["instance"]["id"] < 2**63
    assert "token" not in json.dumps(whole)


def test_identity_token_request_without_an_audience_is_rejected(metadata: Metadata) -> None:
    path = f"{ACCOUNT}/identity"
    token = text(metadata, path, "audience=https://a&format=full")
    assert token == TOKENS.identity_token(CLAIMS, "https://a")
    refused = get_metadata(metadata, path)
    assert (refused.status, refused.body) == (400, b"non-empty audience parameter required\n")


@pytest.mark.parametrize("headers", [{}, {"metadata-flavor": "google"}, {"x-google": "True"}])
def test_metadata_request_without_the_metadata_flavor_header_is_rejected(
    metadata: Metadata, headers: dict[str, str]
) -> None:
    """An SSRF or CSRF attacker cannot set this header."""
    for path in (V1, f"{V1}/", f"{ACCOUNT}/token", f"{V1}/no/such/thing"):
        refused = get_metadata(metadata, path, headers=headers)
        assert refused.status == 403
        assert b"Metadata-Flavor:Google" in refused.body
    assert get_metadata(metadata, "/", headers=headers).status == 200


def test_metadata_request_with_a_forwarding_header_is_rejected(metadata: Metadata) -> None:
    headers = FLAVOR | {"x-forwarded-for": "10.0.0.1"}
    assert get_metadata(metadata, f"{ACCOUNT}/token", headers=headers).status == 403


def test_structured_metadata_values_are_json(metadata: Metadata) -> None:
    assert get_json(metadata, f"{V1}/instance/tags") == []
    assert get_json(metadata, f"{V1}/instance/upcoming-maintenance") == {}
    assert get_json(metadata, f"{V1}/instance/disks/", "alt=json") == ["0/"]
    assert get_json(metadata, f"{V1}/instance/preempted", "alt=json") == "FALSE"
    (interface,) = get_json(metadata, f"{V1}/instance/network-interfaces/", "recursive=true")
    assert (interface["ip"], interface["forwardedIps"]) == ("10.128.0.7", [])
    assert text(metadata, f"{V1}/project/", "recursive=true&alt=text") == (
        f"numeric-project-id {NUMBER}\nproject-id p1\n"
    )


def test_metadata_of_a_spot_job_reports_a_preemptible_machine(metadata: Metadata) -> None:
    shown = get_metadata(
        metadata, f"{V1}/instance/scheduling/", "recursive=true", machine=Machine(is_spot=True)
    )
    assert json.loads(shown.body) == {
        "automaticRestart": "FALSE",
        "onHostMaintenance": "TERMINATE",
        "preemptible": "TRUE",
    }


def etag_of(answer: Response) -> str:
    return dict(answer.headers)[b"etag"].decode()


async def start_hanging_get(
    metadata: Metadata, path: str, query: str = ""
) -> tuple[DisconnectingClient, asyncio.Task[Response | None]]:
    """Start a hanging GET, and return once it waits."""
    client = DisconnectingClient(f"{V1}/instance/{path}", f"wait_for_change=true{query}", **FLAVOR)
    task = asyncio.ensure_future(answer_to(metadata, client))
    for _ in range(5):
        await asyncio.sleep(0)
    return client, task


@pytest.mark.parametrize("notice", ["preempted", "maintenance"])
def test_waiting_metadata_request_returns_after_a_preemption_notice(
    metadata: Metadata, notices: Notices, notice: str
) -> None:
    """Training programs wait for this notice in a background thread
    (`../shared/inputs/preempted_watch.sh`)."""

    async def watch() -> None:
        waiting = [
            (await start_hanging_get(metadata, path, query))[1]
            for path, query in (
                *[("preempted", "")] * 1000,
                ("preempted", "&timeout_sec=3600"),
                ("", "&recursive=true"),
            )
        ]
        _, event = await start_hanging_get(metadata, "maintenance-event", "&timeout_sec=1")
        notices.add(CLAIMS, notice)
        *texts, whole = [answer for answer in await asyncio.gather(*waiting) if answer]
        assert {answer.body for answer in texts} == {b"TRUE"}
        shown = json.loads(whole.body)
        assert shown["preempted"] == "TRUE"
        kind = "TERMINATE_ON_HOST_MAINTENANCE" if notice == "maintenance" else "NONE"
        assert shown["maintenanceEvent"] == kind
        assert ((await event) or Response()).body.decode() == kind
        assert not notices._watching  # pyright: ignore[reportPrivateUsage]
        # A client with a late request has missed the change.
        _, late = await start_hanging_get(metadata, "preempted")
        assert ((await late) or Response()).body == b"TRUE"
        # The next incarnation of the replica.
        notices.remove(CLAIMS, notice)
        assert not notices.of(CLAIMS)

    asyncio.run(watch())


def test_preemption_notice_is_visible_only_to_the_preempted_replica(
    metadata: Metadata, notices: Notices
) -> None:
    async def watch() -> None:
        _, task = await start_hanging_get(metadata, "preempted", "&timeout_sec=1")
        notices.add(JobClaims(1234567890123, 2, "workerpool1-4", "p1", EMAIL), "preempted")
        assert ((await task) or Response()).body == b"FALSE"

    asyncio.run(watch())


def test_waiting_metadata_request_with_an_outdated_etag_returns_immediately(metadata: Metadata) -> None:
    path = f"{V1}/instance/preempted"
    tag = etag_of(get_metadata(metadata, path))
    assert get_metadata(metadata, path, "wait_for_change=true&last_etag=NONE").body == b"FALSE"
    answer = get_metadata(metadata, path, f"wait_for_change=true&timeout_sec=1&last_etag={tag}")
    assert (answer.status, etag_of(answer)) == (200, tag)


def test_waiting_metadata_request_is_removed_when_the_client_disconnects(
    metadata: Metadata, notices: Notices
) -> None:
    async def watch() -> None:
        client, task = await start_hanging_get(metadata, "preempted")
        client.leave()
        with pytest.raises(Disconnected):
            await task
        assert not notices._watching  # pyright: ignore[reportPrivateUsage]

    asyncio.run(watch())


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("instance/preempted", "timeout_sec=soon", 400),
        ("instance/preempted", "timeout_sec=-1", 400),
        ("instance/service-accounts/default/token", "", 400),
        ("instance/no-such-key", "", 404),
    ],
)
def test_invalid_or_unsupported_waiting_metadata_request_is_rejected(
    metadata: Metadata, path: str, query: str, status: int
) -> None:
    assert get_metadata(metadata, f"{V1}/{path}", f"wait_for_change=true&{query}").status == status
