"""What of an environment may be kept when a failed replica is (issue: secrets redacted when it is
captured)."""

import json

import pytest

from trainshed.access.redaction import REDACTED, redacted


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
def test_names_of_credentials(name: str) -> None:
    assert redacted({name: "x"}) == {name: REDACTED}


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "PATH", "AUTHOR", "TOKENIZERS_PARALLELISM", "KEYBOARD", "MONKEY"]
)
def test_names_of_other_things(name: str) -> None:
    assert redacted({name: "x"}) == {name: "x"}


def test_what_is_redacted_is_not_told_by_the_jobs_description() -> None:
    """CLUSTER_SPEC holds the variables of the job once more. Short values stand everywhere."""
    env = {"HUB_TOKEN": 'a"b\\cdefg', "DB_PASSWORD": "root"}
    spec = json.dumps([{"name": name, "value": value} for name, value in env.items()])
    kept = redacted(env | {"CLUSTER_SPEC": spec, "WHO": "root"})
    variables = json.loads(kept["CLUSTER_SPEC"])
    assert [variable["value"] for variable in variables] == [REDACTED, "root"]
    assert kept["WHO"] == "root"


def test_variables_that_came_from_secrets_and_values_that_tell() -> None:
    pem = "-----BEGIN RSA PRIVATE KEY-----\nx"
    env = {"A": "1", "B": "2", "DSN": "postgres://me:pw@host/db", "PEM": pem, "U": "http://h:80/p"}
    kept = redacted(env, {"B"})
    assert [name for name, value in kept.items() if value == REDACTED] == ["B", "DSN", "PEM"]
    assert kept["A"] == "1" and kept["U"] == "http://h:80/p"
