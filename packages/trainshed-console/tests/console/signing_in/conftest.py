"""An OpenID Connect issuer over HTTP, a console that uses it, and helpers for the steps of a sign-in."""

import base64
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import pytest

from tests.console.browser import Browser, ConsoleService, text_of
from tests.contract.api.api_service import LOCATION, START, Answer, ApiService
from tests.issuer import GCLOUD, ScriptedIssuer, issuing

ANA = "ana@corp.example"
NOW = START // 10**9
JOBS = f"{LOCATION}/customJobs"
JOB_SERVICE = "google.cloud.aiplatform.v1.JobService"
WHOAMI = "/trainshed/v1/whoami"


@pytest.fixture
def issuer() -> Iterator[ScriptedIssuer]:
    with issuing(lambda: NOW) as issuer:
        yield issuer


@pytest.fixture
async def service(tmp_path: Path, issuer: ScriptedIssuer) -> AsyncGenerator[ConsoleService]:
    service = ConsoleService(tmp_path, issuers=[issuer.settings(audiences=("gcloud", GCLOUD))])
    yield service
    service.close()


async def redirect_to_issuer(browser: Browser, **query: str) -> str:
    """Start a sign-in, and return the issuer's address to which the browser is redirected."""
    answer = await browser.get(f"/login/with?{urlencode({'issuer': 'Corp', **query})}")
    assert answer.status == 303, answer.body
    return answer.headers["location"]


def state_of(location: str) -> str:
    return parse_qs(urlsplit(location).query)["state"][0]


async def return_from_issuer(browser: Browser, state: str, code: str) -> Answer:
    return await browser.get(f"/login/back?{urlencode({'state': state, 'code': code})}")


async def sign_in_with_issuer(browser: Browser, issuer: ScriptedIssuer) -> Answer:
    location = await redirect_to_issuer(browser, next="/team", mark="m")
    answer = await return_from_issuer(browser, state_of(location), issuer.signs_in(location))
    assert answer.status == 303, text_of(answer)
    link = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
    return await browser.sign_in(code=link["code"], next=link["next"])


async def exchange_token(service: ConsoleService, token: str) -> Answer:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
    }
    headers = [("content-type", "application/x-www-form-urlencoded")]
    return await service.call("POST", "/token", urlencode(form).encode(), token=None, headers=headers)


async def grant_viewer(service: ApiService, member: str) -> None:
    grant = {"role": "roles/aiplatform.viewer", "member": member, "project": "p1"}
    await service.result("POST", "/trainshed/v1/access:change", grant)


def base64url(content: str | bytes) -> str:
    content = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


async def expect_rejection(service: ConsoleService, token: str, why: str) -> None:
    """Check that a token of an issuer is rejected by the token exchange and by the API."""
    answer = await exchange_token(service, token)
    assert answer.status == 400 and why in answer.json["error_description"]
    answer = await service.call("GET", WHOAMI, token=token)
    assert answer.status == 401 and why in answer.error["message"]
