"""Redaction of the environment in the autopsy of a failed replica."""

import json

import pytest

from trainshed.access.redaction import REDACTED, redact


@pytest.mark.parametrize(
    "name",
    [
        "DB_PASSWORD",
        "MYSQL_PASSWORD_FILE",
        "GITHUB_TOKEN",
        "wandb_api_key",
        "AWS_ACCESS_KEY_ID",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "DB_PWD",
        "NPM_CONFIG__AUTH",
        "KEY_PASSPHRASE",
    ],
)
def test_variable_name_of_a_credential_is_recognized(name: str) -> None:
    assert redact({name: "x"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "PATH", "AUTHOR", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY"]
)
def test_ordinary_variable_name_is_not_treated_as_a_credential(name: str) -> None:
    assert redact({name: "x"}) == {name: "x"}


def test_redacted_values_are_hidden_in_the_jobs_description() -> None:
    """CLUSTER_SPEC repeats the job's variables. Short values occur everywhere, so they are not redacted."""
    env = {"HUB_TOKEN": 'a"b\\cdefg', "DB_PASSWORD": "root"}
    spec = json.dumps([{"name": name, "value": value} for name, value in env.items()])
    kept = redact(env | {"CLUSTER_SPEC": spec, "WHO": "root"})
    variables = json.loads(kept["CLUSTER_SPEC"])
    assert [variable["value"] for variable in variables] == [REDACTED, "root"]
    assert kept["WHO"] == "root"


def test_secrets_and_values_with_the_form_of_credentials_are_redacted() -> None:
    pem = "-----BEGIN RSA PRIVATE KEY-----\nx"
    env = {"A": "1", "B": "2", "DSN": "postgres://me:pw@host/db", "PEM": pem, "U": "http://h:80/p"}
    kept = redact(env, {"B"})
    assert [name for name, value in kept.items() if value == REDACTED] == ["B", "DSN", "PEM"]
    assert kept["A"] == "1" and kept["U"] == "http://h:80/p"
