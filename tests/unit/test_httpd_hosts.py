"""Host names and origins that may call the service (DNS rebinding, CSRF)."""

import pytest

from trainshed.httpd.hosts import Hosts

HOSTS = Hosts(("node-7", "*.example.org", "*.googleapis.com"), ("https://console.example.com",))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "shed.localhost",
        "127.0.0.1:8080",
        "127.64.0.3",
        "[::1]:8080",
        "192.168.1.5:8080",
        "node-7:8080",
        "training.example.org",
        "us-central1-aiplatform.googleapis.com",
        "host.docker.internal:8080",
    ],
)
def test_ip_addresses_and_own_hostnames_in_the_host_header_are_accepted(host: str) -> None:
    assert HOSTS.is_known_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "example.org",
        "evilexample.org",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "googleapis.com.evil.example",
        "node-7.evil.example",
        "[evil.example]",
        "[::1]evil.example",
        "[::1]:x",
        "::1",
        "localhost:1@evil.example",
        "localhost@evil.example",
        "localhost, evil.example",
        "localhost:123456",
        "",
    ],
)
def test_foreign_hostname_in_the_host_header_is_rejected_against_dns_rebinding(host: str) -> None:
    assert not HOSTS.is_known_host(host)
    assert Hosts(("*",)).is_known_host(host)


@pytest.mark.parametrize(
    ("origin", "host", "fine"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080", True),
        ("https://training.example.org", "training.example.org:443", True),
        ("https://console.example.com", "127.0.0.1:8080", True),
        ("https://console.example.com:444", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8081", "127.0.0.1:8080", False),
        ("http://evil.example", "127.0.0.1:8080", False),
        ("http://127.0.0.1:8080@evil.example", "127.0.0.1:8080", False),
        ("http://[", "127.0.0.1:8080", False),
        ("null", "127.0.0.1:8080", False),
        ("", "", False),
    ],
)
def test_csrf_check_accepts_only_the_same_origin_and_configured_origins(
    origin: str, host: str, fine: bool
) -> None:
    assert HOSTS.allows_origin(origin, host) is fine


def test_request_with_two_host_headers_is_rejected() -> None:
    scope = {"type": "http", "method": "GET", "server": ("127.0.0.1", 8080)}
    hosts = [(b"host", b"localhost"), (b"host", b"evil.example")]
    assert HOSTS.fault({**scope, "headers": hosts[:1]}) is None
    for headers in (hosts, [hosts[0], hosts[0]]):
        fault = HOSTS.fault({**scope, "headers": headers})
        assert fault is not None and fault[0] == 400
