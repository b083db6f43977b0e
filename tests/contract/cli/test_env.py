"""`trainshed env`: the variables, read by real shells and google-auth (spec/clients#recipes)."""

import json
from pathlib import Path

import pytest

from tests.commands import execute
from tests.contract.cli.conftest import Invoke, write_service_file
from tests.contract.cli.fake_service import TOKEN, FakeService
from trainshed.buckets.callers import address_with_key
from trainshed.cli import connection
from trainshed.cli.environment import credentials_document


def environment(script: str) -> dict[str, str]:
    clean = {"PATH": "/usr/bin:/bin"}
    text = execute("/bin/sh", "-c", script + "\nenv", env=clean, check=True).stdout
    return dict(row.split("=", 1) for row in text.splitlines())


def test_output_of_the_env_command_can_be_evaluated_by_a_posix_shell(
    trainshed: Invoke, tmp_path: Path
) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:7", storage="http://127.0.0.1:8", project="a'b")
    result = trainshed("env")
    assert result.exit_code == 0, result.stderr
    record = environment(result.stdout)
    assert record["CLOUDSDK_AUTH_ACCESS_TOKEN"] == TOKEN
    assert record["CLOUDSDK_CORE_PROJECT"] == "a'b"
    assert record["CLOUDSDK_AI_REGION"] == "us-central1"
    for api in ("ML", "ARTIFACTREGISTRY"):
        assert record[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}"] == "http://127.0.0.1:7/"
    assert record["CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"] == "http://127.0.0.1:8/storage/v1/"
    assert record["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] == "http://127.0.0.1:7/compute/v1/"
    # The address contains a key: google-cloud-storage sends no token to an address of this variable.
    assert record["STORAGE_EMULATOR_HOST"] == address_with_key("http://127.0.0.1:8", TOKEN)
    assert record["CLOUD_STORAGE_EMULATOR_ENDPOINT"] == record["STORAGE_EMULATOR_HOST"]
    assert record["TRAINSHED_ENDPOINT"] == "http://127.0.0.1:7"
    assert record["GOOGLE_APPLICATION_CREDENTIALS"] == str(tmp_path / "credentials.json")
    # `eval $(trainshed env)` without quotes joins all lines into one, so the comments must be last.
    assert environment(" ".join(result.stdout.split())).get("TRAINSHED_TOKEN") == TOKEN


def test_env_command_does_not_set_the_project_variable_that_causes_google_requests(
    trainshed: Invoke, tmp_path: Path
) -> None:
    """With GOOGLE_CLOUD_PROJECT the SDK would look the project up at Google over gRPC, for up to a
    minute (spec/clients#surface)."""
    write_service_file(tmp_path, "http://127.0.0.1:7", project="ours")
    record = environment(trainshed("env").stdout)
    assert record["GCLOUD_PROJECT"] == "ours"
    assert "GOOGLE_CLOUD_PROJECT" not in record
    assert "export GCLOUD_PROJECT=q\n" in trainshed("env", "--project", "q").stdout
    # A value from the caller's environment would select another project.
    value = trainshed("env", env={"GOOGLE_CLOUD_PROJECT": "theirs"}).stdout
    assert environment(value)["GOOGLE_CLOUD_PROJECT"] == "ours"


def test_env_unset_removes_all_variables_without_a_service(trainshed: Invoke, tmp_path: Path) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:7")
    value = trainshed("env").stdout
    (tmp_path / "service.json").unlink()
    undo = trainshed("env", "--unset")
    assert undo.exit_code == 0
    assert set(environment(f"{value}\n{undo.stdout}")) == set(environment(""))


def test_env_values_are_quoted_for_fish(trainshed: Invoke, tmp_path: Path) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:7", project="a'b")
    value = trainshed("env").stdout
    assert environment(value)["CLOUDSDK_CORE_PROJECT"] == "a'b"
    assert """export CLOUDSDK_CORE_PROJECT='a'"'"'b'\n""" in value


def test_env_reads_the_defaults_of_a_remote_service(service: FakeService) -> None:
    service.on("GET", "/trainshed/v1/status", {"project": "q", "region": "europe-west4"})
    result = service.cli("env", "--url", service.address, "--token", TOKEN)
    assert "CLOUDSDK_CORE_PROJECT=q\n" in result.stdout
    assert "CLOUDSDK_AI_REGION=europe-west4\n" in result.stdout
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in result.stdout
    # This variable would send the user's own credentials to that endpoint.
    assert "CLOUD_STORAGE_EMULATOR_ENDPOINT" not in result.stdout
    # The shell may run in another directory, so the path is absolute.
    assert connection.remote(service.address, TOKEN, "", "ca.pem").ca == str(Path("ca.pem").absolute())


def test_google_auth_uses_the_credentials_file_without_requests_to_other_hosts(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import google.auth
    from google.auth.transport.requests import AuthorizedSession

    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(credentials_document(TOKEN, "p", service.address)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    monkeypatch.setenv("GCLOUD_PROJECT", "p")
    # All requests to other hosts would use this proxy.
    monkeypatch.setenv("HTTPS_PROXY", service.address)
    service.on("GET", "/v1/x", {})
    scope = "https://www.googleapis.com/auth/cloud-platform"
    credentials, project = google.auth.default(scopes=[scope])  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped library
    session = AuthorizedSession(credentials)  # pyright: ignore[reportUnknownArgumentType] - untyped library
    assert session.get(f"{service.address}/v1/x").status_code == 200  # pyright: ignore[reportUnknownMemberType] - untyped library
    assert project == "p"
    assert [request.path for request in service.sent] == ["/v1/x"]
