"""gsutil outside of jobs: its configuration file, and the exchange of its refresh token."""

import asyncio
import configparser

from trainshed.buckets.callers import exchange_refresh_token
from trainshed.cli.environment import boto_document


def test_gsutil_configuration_contains_service_address_token_and_trusted_certificates() -> None:
    text = boto_document("http://127.0.0.1:8081", "localhost:8084", "/d/roots.pem", "secret", "p")
    config = configparser.ConfigParser()
    config.read_string(text)
    assert config["Credentials"]["gs_json_host"] == "localhost"
    assert config["Credentials"]["gs_json_port"] == "8084"
    assert config["Credentials"]["gs_oauth2_refresh_token"] == "secret"
    assert config["OAuth2"]["provider_token_uri"] == "http://127.0.0.1:8081/oauth2/token"
    assert config["Boto"]["ca_certificates_file"] == "/d/roots.pem"
    assert config["Boto"].getboolean("https_validate_certificates")
    assert config["GSUtil"]["default_project_id"] == "p"


async def is_good(token: str) -> bool:
    return token == "good"


def test_valid_refresh_token_is_returned_as_the_access_token() -> None:
    form = b"grant_type=refresh_token&refresh_token=good&client_id=trainshed&client_secret=unused"
    status, answer = asyncio.run(exchange_refresh_token(form, is_good))
    assert (status, answer["access_token"], answer["token_type"]) == (200, "good", "Bearer")


def test_unknown_refresh_token_is_rejected() -> None:
    bad = b"grant_type=refresh_token&refresh_token=bad"
    assert asyncio.run(exchange_refresh_token(bad, is_good))[0] == 401
    assert asyncio.run(exchange_refresh_token(b"grant_type=refresh_token", is_good))[0] == 401
    other = b"grant_type=authorization_code&code=x"
    status, answer = asyncio.run(exchange_refresh_token(other, is_good))
    assert (status, answer["error"]) == (400, "unsupported_grant_type")
