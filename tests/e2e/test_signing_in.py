"""Signing in at an issuer in a real browser (docs/team.md). tests/console tests the issuer's responses."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.auth import identity_pool
from google.auth.transport.requests import Request
from playwright.sync_api import Browser, expect

from tests.e2e import fork_server
from tests.e2e.browsing import WITH_CHROMIUM
from tests.e2e.conftest import NODE
from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    Service,
    container_job,
    environment,
    running,
    submit,
    trainshed,
)
from tests.issuer import CLIENT, GCLOUD, ScriptedIssuer, issuing
from trainshed.access.account_tokens import MAX_CLOCK_SKEW

pytestmark = pytest.mark.e2e
ROBOT = f"nightly@{PROJECT}.iam.gserviceaccount.com"


@dataclass(frozen=True)
class Personal(Gcloud):
    """As the signed-in gcloud user. `tokens`: the source of its tokens."""

    tokens: str

    def environment(self) -> dict[str, str]:
        return super().environment() | {"CLOUDSDK_AUTH_TOKEN_HOST": self.tokens}


@pytest.fixture(scope="module")
def issuer() -> Iterator[ScriptedIssuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, issuer: ScriptedIssuer) -> Iterator[Service]:
    with trusting(issuer.address, tmp_path_factory.mktemp("signing-in")) as started:
        yield started


@contextmanager
def trusting(issuer: str, data: Path) -> Generator[Service]:
    """A service with users of an issuer."""
    settings = (
        f'[[oidc]]\nname = "Corp"\nissuer = "{issuer}"\nclient_id = "{CLIENT}"\n'
        f'audiences = ["{GCLOUD}"]\ntokeninfo = "{issuer}/tokeninfo"\n'
        f'[oidc.accounts]\n"repo:corp/vision:ref:*" = "{ROBOT}"\n'
    )
    with running(data, settings=settings) as started:
        yield started


@WITH_CHROMIUM
@pytest.mark.parametrize("options", [(), ("--no-browser",)], ids=["browser", "code"])
def test_browser_signs_in_the_command_line(
    service: Service, chromium: Browser, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A page redirects to the command (RFC 8252), or shows a code if there is no local browser. Later
    commands use that service. The timeout is longer than usual, because the browser may be slow."""
    own = {"XDG_CONFIG_HOME": str(tmp_path), "DISPLAY": ":0", "BROWSER": "true"}
    variables = {**environment(service.data), **own}
    del variables["TRAINSHED_DATA"]

    def run_command(*words: str) -> str:
        return fork_server.services().run(["-m", "trainshed", *words], variables).stdout.decode()

    slow = "import trainshed.__main__ as m, trainshed.cli.login as l; l._CodeHandler.timeout = 20; m.main()"
    words, pipe = [sys.executable, "-c", slow, "login", service.rest, *options], subprocess.PIPE
    login = subprocess.Popen(words, env=variables, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert login.stderr is not None
    page = chromium.new_context().new_page()
    page.goto(login.stderr.readline().split()[-1])
    page.get_by_text("Sign in with Corp").click()
    page.get_by_role("button", name="Sign it in").click()
    code = None
    if options:
        code = page.locator("pre code").inner_text()
    else:
        expect(page.locator("body")).to_contain_text("Go back to the terminal.")
    printed, errors = login.communicate(code and f"{code}\n", timeout=60)
    assert login.returncode == 0, errors
    assert f"ana@corp.example  is signed in at {service.rest}." in printed
    file = tmp_path / "trainshed/login.json"
    assert file.stat().st_mode & 0o777 == 0o600
    shown, known = json.loads(run_command("env", "--format", "json")), json.loads(file.read_text())
    assert shown["TRAINSHED_TOKEN"] == known["token"] != service.token
    run_command("login", "--forget")
    assert not list(file.parent.iterdir())
    assert service.ask("GET", "/trainshed/v1/whoami", token=known["token"]).status == 401


@WITH_CHROMIUM
def test_certified_provider_signs_in_a_user(node_modules: Path, chromium: Browser, tmp_path: Path) -> None:
    """The browser returns to the requested page. Afterwards its ID token is valid without a session, until
    the provider is removed from the settings."""
    program = ["node", str(NODE / "provider.mjs"), str(node_modules), CLIENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True) as provider:
        assert provider.stdin is not None and provider.stdout is not None
        with trusting(provider.stdout.readline().strip(), tmp_path) as service:
            print(f"{service.rest}/login/back", file=provider.stdin, flush=True)
            page = chromium.new_context().new_page()
            page.route("**://fonts.googleapis.com/**", lambda route: route.abort())
            page.goto(f"{service.rest}/team")
            page.get_by_text("Sign in with Corp").click()
            page.locator("input[name=login]").fill("bo")
            page.locator("input[name=password]").fill("any")
            page.locator("button[type=submit]").click()
            page.get_by_text("Continue").click()
            expect(page).to_have_url(f"{service.rest}/team")
            expect(page.locator("aside")).to_contain_text("bo@corp.example")
            token = provider.stdout.readline().strip()
            me = service.ask("GET", "/trainshed/v1/whoami", token=token).json
            assert (me["email"], me["grants"]) == ("bo@corp.example", [])
    with running(tmp_path) as service:
        assert service.ask("GET", "/trainshed/v1/whoami", token=token).status == 401


@pytest.mark.gcloud
@needs_gcloud
def test_gcloud_sends_an_unmodified_id_token(
    service: Service, issuer: ScriptedIssuer, tmp_path: Path
) -> None:
    """The storage port accepts the token, too: its process calls the service. Active streams end with the
    token."""
    trainshed("iam", "user:ana@corp.example", "roles/editor", data=service.data)

    def hers(seconds: int) -> Service:
        token = issuer.id_token(exp=int(time.time()) + seconds - MAX_CLOCK_SKEW)
        return replace(service, token=token)

    gcloud = Gcloud(hers(600), tmp_path)
    assert gcloud.run("storage", "ls").stdout == "gs://trainshed/\n"
    gcloud.run("ai", "custom-jobs", "list")
    job = submit(service, container_job("import time; time.sleep(600)"))
    began = time.monotonic()
    assert not [view for view in hers(10).watch(job) if "SUCCEEDED" in view["state"]]
    assert time.monotonic() - began < 60
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel")


@pytest.mark.gcloud
@needs_gcloud
def test_signed_in_gcloud_user_needs_no_configuration(
    service: Service, issuer: ScriptedIssuer, tmp_path: Path
) -> None:
    """Signed in at the issuer, from which gcloud gets its access tokens; also at the storage port."""
    trainshed("iam", "user:ana@corp.example", "roles/editor", data=service.data)
    user = Personal(replace(service, token=""), tmp_path, f"{issuer.address}/token")
    user.run("auth", "activate-refresh-token", "ana@corp.example", "1//refresh")
    assert user.run("storage", "ls").stdout == "gs://trainshed/\n"
    user.run("ai", "custom-jobs", "list")
    assert issuer.paths[-1].startswith("/tokeninfo?access_token=ya29.")


def test_google_auth_exchanges_the_id_token_of_a_machine(
    service: Service, issuer: ScriptedIssuer, tmp_path: Path
) -> None:
    """The library reads a Workload Identity Federation file with the service's address."""
    service.call("POST", f"/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "nightly"})
    token, pool = tmp_path / "token", "//iam.googleapis.com/projects/1/locations/global"
    token.write_text(issuer.id_token(sub="repo:corp/vision:ref:refs/heads/main"))
    info = {
        "type": "external_account",
        "audience": f"{pool}/workloadIdentityPools/ci/providers/ci",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{service.rest}/token",
        "credential_source": {"file": str(token)},
    }
    library: Any = identity_pool.Credentials
    credentials = library.from_info(info, scopes=["cloud-platform"])
    credentials.refresh(Request())
    me = service.ask("GET", "/trainshed/v1/whoami", token=credentials.token).json
    assert (me["email"], credentials.expired) == (ROBOT, False)
