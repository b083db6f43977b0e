"""The tables `[[buckets]]` of the settings (spec/program#storage): valid ones, and errors at the start of the
service."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainshed.buckets.disk.catalog import BucketCatalog
from trainshed.buckets.errors import Conflict, InvalidRequest
from trainshed.buckets.setup import BucketRules, BucketSetup, BucketTable, cannot_serve
from trainshed.core.names import DEFAULT_BUCKET
from trainshed.serve.settings import SettingsError, load

S3 = """
[[buckets]]
name = "far-1"
store = "s3"
bucket = "corp-data"
prefix = "training"
endpoint = "https://store.example:9000"
region = "eu-west-1"
access_key_env = "FAR_KEY"
secret_key_env = "FAR_SECRET"
shared = true

[[buckets]]
name = "near-1"
project = "vision"
region = ""
"""


def write_settings(tmp_path: Path, text: str) -> Path:
    config = tmp_path / "c.toml"
    config.write_text(text)
    return config


def test_bucket_tables_of_the_settings_file_are_parsed(tmp_path: Path) -> None:
    far, near = load(write_settings(tmp_path, S3), {}).buckets
    assert (far.bucket, far.prefix, far.region) == ("corp-data", "training", "eu-west-1")
    assert (far.is_remote, far.shared) == (True, True)
    assert (near.is_remote, near.project, near.region) == (False, "vision", None)
    setup = BucketSetup("/r", "/g", "/s", "/t", rules=BucketRules("own", (far, near)))
    assert BucketSetup.decode(setup.encode()) == setup


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ('name = "a-1"\nstore = "ftp"', "store: 'ftp' is none of"),
        ('store = "s3"', "missing required field `name`"),
        ('name = "a-1"\nstroe = "s3"', "stroe: there is no such setting. Did you mean store?"),
        ('name = "a-1"\nshared = "yes"', "shared: 'yes' is neither true nor false"),
        ('name = "a-1"\nregion = 7', "region: 7 is not a text"),
        ('name = "a-1"\nendpoint = "x"', "endpoint: does not apply to a bucket of the kind local"),
        ('name = "a-1"\nstore = "gcs"\naccess_key_env = "X"', "access_key_env: does not apply"),
        ('name = "a-1"\nstore = "s3"\naccess_key_env = "X"', "requires secret_key_env"),
        ('name = "a-1"\nstore = "s3"\nendpoint = "h:9000"', "not of the form https://HOST:PORT"),
        ('name = "a-1"\n[[buckets]]\nname = "a-1"', "two tables have the name 'a-1'"),
    ],
)
def test_invalid_bucket_table_is_rejected_at_start(tmp_path: Path, lines: str, fault: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(write_settings(tmp_path, f"[[buckets]]\n{lines}\n"), {})
    assert fault in str(refused.value)


def test_error_of_a_bucket_table_lists_all_faults_and_contains_no_secrets(tmp_path: Path) -> None:
    """A secret in place of a variable's name does not appear in the error."""
    text = '[[buckets]]\nname = "A"\nstore = "s3"\nsecret_key_env = "can/ary+secret"\n'
    with pytest.raises(SettingsError) as refused:
        load(write_settings(tmp_path, text), {})
    faults = str(refused.value)
    for field in ("name", "secret_key_env", "access_key_env"):
        assert f"buckets[0].{field}: " in faults
    assert "can/ary+secret" not in faults


def test_unserviceable_remote_bucket_is_rejected_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    table = BucketTable("far-1", "s3", access_key_env="FAR_KEY", secret_key_env="FAR_SECRET")
    monkeypatch.setattr("trainshed.buckets.setup.find_spec", lambda name: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert "pip install 'trainshed[remote]'" in str(cannot_serve([table], []))
    assert cannot_serve([BucketTable("near-1")], ["near-1"]) is None
    monkeypatch.setattr("trainshed.buckets.setup.find_spec", lambda name: object())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert cannot_serve([table], ["other"]) is None
    assert "a local directory" in str(cannot_serve([table], ["far-1"]))


def test_remote_bucket_of_the_settings_is_listed_next_to_local_buckets(tmp_path: Path) -> None:
    far = BucketTable("far-1", "s3", region="eu-west-1", project="vision")
    near = BucketTable("near-1", project="vision", shared=True)
    rules = BucketRules("own", tables=(far, near))
    catalog = BucketCatalog(tmp_path / "store", lambda: 7, rules)
    catalog.create("mine-1", project="p")
    assert catalog.names() == ["far-1", "mine-1"]
    assert (catalog.get("far-1").location, catalog.get("far-1").created_ns) == ("EU-WEST-1", 7)
    catalog.ensure("near-1", project=near.project)
    catalog.directory("operators-1").mkdir()
    owned = {"far-1": ("vision", False), "near-1": ("vision", True), "mine-1": ("p", False)}
    expected = {**owned, "operators-1": ("own", False), "none-1": None, "A": None}
    held = {name: catalog.access(name) for name in expected}
    shown = {name: access and (access.project, access.is_shared) for name, access in held.items()}
    assert shown == expected
    with pytest.raises(Conflict):
        catalog.create("far-1")
    with pytest.raises(InvalidRequest, match="configuration"):
        catalog.delete("far-1")
    later = BucketCatalog(tmp_path / "store", lambda: 9, rules)
    assert later.get("far-1").created_ns == 7


def test_changed_bucket_policy_applies_immediately_in_all_processes(tmp_path: Path) -> None:
    """Each read checks whether another process has changed the record's file."""
    here, there = (BucketCatalog(tmp_path / "store", lambda: 7) for _ in range(2))
    here.create("mine-1", project="p")
    first = there.access("mine-1")
    here.set_policy("mine-1", [{"role": "r", "members": ["m"]}])
    second = there.access("mine-1")
    assert first and second
    assert (list(first.bindings), list(second.bindings)) == ([], [{"role": "r", "members": ["m"]}])
    here.delete("mine-1")
    assert there.access("mine-1") is None


def test_default_bucket_belongs_to_the_project_of_the_current_settings(tmp_path: Path) -> None:
    """The setting may have changed after the bucket was created."""
    BucketCatalog(tmp_path / "store", lambda: 7, BucketRules("p")).ensure(DEFAULT_BUCKET)
    catalog = BucketCatalog(tmp_path / "store", lambda: 8, BucketRules("own"))
    held = catalog.access(DEFAULT_BUCKET)
    assert held and (held.project, held.is_shared) == ("own", False)
