"""The table [engines.slurm]: its limits, and errors that are all reported at once."""

from typing import Any

import msgspec
import pytest

from tests.sources import ROOT
from trainshed_cluster.slurm.settings import SlurmSettings, parse
from trainshed_cluster.slurm.users import node_directory


def test_default_slurm_settings_are_valid() -> None:
    settings = parse({"commands": "", "conf": "", "directory": ""})
    assert settings == parse({})
    assert node_directory(settings, None).startswith("/tmp/trainshed-")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ("--nodelist=a", "the engine sets --nodelist itself"),
        ("--partition=a", "use the setting partition instead of --partition"),
    ],
)
def test_reserved_salloc_arguments_are_rejected(extra: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse({"extra": [extra]})
    assert parse({"extra": ["--reservation=tests", "--time=60"]}).extra


def test_accelerator_settings_with_unknown_types_or_duplicate_gres_are_rejected() -> None:
    with pytest.raises(ValueError, match="Did you mean NVIDIA_TESLA_T4"):
        parse({"accelerators": {"nvidia-tesla-t4": "t4"}})
    with pytest.raises(ValueError, match="'t4' is assigned to several"):
        parse({"accelerators": {"NVIDIA_TESLA_T4": "t4", "NVIDIA_L4": "t4"}})


def test_all_wrong_machine_tables_are_reported_at_once() -> None:
    wrong = [
        {"types": ["n1-standard-3"], "partiton": "gpu", "qos": 7},
        {"partition": "gpu"},
        {"types": ["a2-*"], "accelerators": ["A100"], "extra": ["--qos=x"]},
        {"accelerators": ["NVIDIA_L4"], "gres": "gpu:"},
        "gpu",
    ]
    with pytest.raises(ValueError) as caught:
        parse({"machines": wrong})
    message = str(caught.value)
    for name in ("machines[0].partiton", "machines[0].qos", "machines[3].gres"):
        assert f"[engines.slurm] {name}: " in message
    with pytest.raises(ValueError) as caught:
        parse({"machines": [{"types": ["n1-standard-3"]}, *wrong[1:3]]})
    lines = str(caught.value).splitlines()
    assert "machine type 'n1-standard-3' does not exist. Did you mean n1-standard-4?" in lines[0]
    assert "machines[1]: it sets neither types nor accelerators" in lines[1]
    assert "machines[2].accelerators: accelerator type 'A100' does not exist" in lines[2]
    assert "machines[2].extra: use the setting qos instead of --qos" in lines[3]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("machines", "text"),
    [
        ([{"types": ["n1-*"]}, {"types": ["n1-standard-*"]}], "machines[1]: earlier tables already cover"),
        ([{"types": ["n1-*"], "gres": "gpu:t4"}], "machines[0].gres: 'gpu:t4' needs exactly one"),
        (
            [
                {"accelerators": ["NVIDIA_L4"], "gres": "gpu:x"},
                {"accelerators": ["NVIDIA_TESLA_T4"], "gres": "gpu:x"},
            ],
            "machines[1].gres: 'gpu:x' is already assigned to NVIDIA_L4",
        ),
    ],
)  # fmt: skip
def test_machines_table_that_can_never_apply_is_rejected(machines: list[object], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({"machines": machines})
    assert text in str(caught.value)


def test_missing_slurm_command_is_reported_with_the_setting_to_change(tmp_path: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"\[engines.slurm\] commands"):
        parse({"commands": str(tmp_path)}).command("salloc")


def test_docs_list_every_setting_with_its_default() -> None:
    """docs/slurm.md: every setting with its default, in order."""
    page = (ROOT / "docs/slurm.md").read_text()
    rows = [row.split("|") for row in page.partition("\n## Settings\n")[2].splitlines()]
    documented = [tuple(cell.strip().strip("`") for cell in row[1:3]) for row in rows if len(row) > 3]
    assert documented[2:] == [
        (field.name, msgspec.json.encode("" if default is None else default).decode().strip('"'))
        for field in msgspec.structs.fields(SlurmSettings)
        for default in [getattr(SlurmSettings(), field.name)]
    ]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"partition": "a b"}, "partition: 'a b' is not valid here; write a name of Slurm"),
        ({"directory": "tmp"}, "directory: 'tmp' is not valid here; write an absolute path"),
        ({"shared": "yes"}, "shared: 'yes' is neither true nor false; write one of them"),
        ({"port": 70000}, "port: 70000 is too large; write 65535 or less"),
        ({"lease": 1}, "lease: 1 is too small; write 5 or more"),
        ({"lease": "90"}, "lease: '90' is not a number; write one, without quotes"),
        ({"port": 1.5}, "port: 1.5 is not a whole number"),
        ({"qos": 7}, "qos: 7 is not a text; put it in quotes"),
        ({"queue": "pbs"}, "queue: 'pbs' is none of 'slurm', 'trainshed'"),
        ({"extra": "--time=5"}, "extra: '--time=5' is not a list; put it in brackets"),
        ({"extra": ["--time=5", "-x"]}, "extra[1]: '-x' is not valid here; write an option"),
        ({"extra": ["--wckey"] * 51}, "extra: has 51 entries; write 50 at most"),
        ({"users": "ada"}, "users: 'ada' is not a table; write NAME = VALUE"),
        ({"users": {"vision": "9"}}, "users.vision: '9' is not valid here; write the name of a"),
        ({"machines": [{"qos": 1}]}, "machines[0].qos: 1 is not a text"),
        ({"accelerators": {"T4": "t4"}}, "'T4' does not exist. Did you mean NVIDIA_TESLA_T4?"),
    ],
)
def test_invalid_value_is_reported_with_the_valid_form(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="slurm") as caught:
        parse(table)
    assert text in str(caught.value)
    assert "regex" not in str(caught.value)
