"""Access control of links: tickets, signed cookies, and the hosts of web pages of jobs (docs/adr/0034)."""

from base64 import urlsafe_b64decode

from trainshed.access.principals import Bearer, Principal
from trainshed.api.calls.links import LIFETIME, Links, Ticket, Tickets, page_of
from trainshed.core.names import JobUid, ReplicaId

WHOSE = "ab" * 32


def test_many_tickets_of_a_user_do_not_invalidate_tickets_of_other_users() -> None:
    tickets = Tickets(lambda: 1)

    def issue(email: str) -> str:
        ticket = Ticket(JobUid(1), ReplicaId(0, 0), email, Principal(email))
        return tickets.issue(ticket)[0]

    of_bo = issue("bo@corp.example")
    of_ana = [issue("ana@corp.example") for _ in range(1005)]
    assert tickets.redeem(of_bo) is not None
    assert tickets.redeem(of_ana[0]) is None and tickets.redeem(of_ana[-1]) is not None


def links(now: int = 0, key: bytes = b"key") -> Links:
    return Links(key, "http://127.0.0.1:8080", lambda: now)


def test_signed_link_is_valid_for_a_single_view_and_expires_after_one_day() -> None:
    mark = links().issue_mark("7", WHOSE)
    assert links(LIFETIME - 1).read_mark("7", mark) == WHOSE
    assert not links(LIFETIME).read_mark("7", mark)
    assert not links().read_mark("8", mark)
    assert not links(key=b"another").read_mark("7", mark)
    # A token digest grants access to buckets, so a shared link must not contain it.
    shown = urlsafe_b64decode(mark.split(".")[1] + "==")
    assert WHOSE.encode() not in shown and mark == links().issue_mark("7", WHOSE)
    until, _, signature = mark.partition(".")
    another = links().issue_mark("7", Bearer("nightly@p1.example", by="bo@corp.example"))
    swapped = f"{until}.{another.split('.')[1]}.{mark.split('.')[2]}"
    for other in (swapped, f"{int(until) + 1}.{signature}", f"1.{signature}", until, "1.x", "", "\udcff"):
        assert not links().read_mark("7", other)


def test_web_page_links_of_a_job_remain_valid_after_a_service_restart() -> None:
    """A second service with the same key also accepts the links."""

    def pages(now: int = 0, key: bytes = b"key", below: str | None = "localhost:80") -> Links:
        return Links(key, "http://127.0.0.1:80", lambda: now, below)

    web = page_of(JobUid(7), "web")
    host = str(pages().page_host(JobUid(7), "web")).removeprefix("http://")
    assert pages().page_of_host(host) == pages().page_of_host(host.upper()) == (7, "web")
    for other in (host.replace("web", "wob"), host.replace("-7-", "-8-"), "web", "localhost"):
        assert pages().page_of_host(other) is None
    assert pages(key=b"another").page_of_host(host) is None
    assert pages(below=None).page_host(JobUid(7), "web") is None
    assert pages().read_mark(page_of(JobUid(7), "wob"), pages().issue_mark(web, WHOSE)) is None
