"""The table [engines.slurm]: bounds, and everything that is wrong at once."""

from typing import Any

import msgspec
import pytest

from tests.sources import ROOT
from trainshed_cluster.slurm.settings import SlurmSettings, parse
from trainshed_cluster.slurm.users import node_directory


def test_nothing_has_to_be_set() -> None:
    settings = parse({"commands": "", "conf": "", "directory": ""})
    assert settings == parse({})
    assert node_directory(settings, None).startswith("/tmp/trainshed-")


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ("--nodelist=a", "--nodelist is the engine's own to give"),
        ("--partition=a", "--partition has a setting of its own, partition"),
    ],
)
def test_arguments_that_the_engine_gives_itself(extra: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse({"extra": [extra]})
    assert parse({"extra": ["--reservation=tests", "--time=60"]}).extra


def test_accelerators_are_public_types_each_with_its_own_gres() -> None:
    with pytest.raises(ValueError, match="Did you mean NVIDIA_TESLA_T4"):
        parse({"accelerators": {"nvidia-tesla-t4": "t4"}})
    with pytest.raises(ValueError, match="'t4' stands for more than one"):
        parse({"accelerators": {"NVIDIA_TESLA_T4": "t4", "NVIDIA_L4": "t4"}})


def test_everything_that_is_wrong_with_where_machines_go_is_named_at_once() -> None:
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
    assert "no machine type is called 'n1-standard-3'. Did you mean n1-standard-4?" in lines[0]
    assert "machines[1]: it names neither types nor accelerators" in lines[1]
    assert "machines[2].accelerators: there is no accelerator type 'A100'" in lines[2]
    assert "machines[2].extra: --qos has a setting of its own" in lines[3]
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("machines", "text"),
    [
        ([{"types": ["n1-*"]}, {"types": ["n1-standard-*"]}], "machines[1]: those before it are for"),
        ([{"types": ["n1-*"], "gres": "gpu:t4"}], "machines[0].gres: 'gpu:t4' stands for one"),
        (
            [
                {"accelerators": ["NVIDIA_L4"], "gres": "gpu:x"},
                {"accelerators": ["NVIDIA_TESLA_T4"], "gres": "gpu:x"},
            ],
            "machines[1].gres: 'gpu:x' stands for NVIDIA_L4 already",
        ),
    ],
)  # fmt: skip
def test_a_way_that_no_machine_can_go_is_refused(machines: list[object], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({"machines": machines})
    assert text in str(caught.value)


def test_a_command_that_is_not_there(tmp_path: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"\[engines.slurm\] commands"):
        parse({"commands": str(tmp_path)}).command("salloc")


def test_the_docs_list_the_settings_as_they_are() -> None:
    """docs/slurm.md: every setting with its default, in order."""
    page = (ROOT / "docs/slurm.md").read_text()
    rows = [row.split("|") for row in page.partition("\n## Settings\n")[2].splitlines()]
    documented = [
        tuple(cell.strip().strip("`") for cell in row[1:3]) for row in rows if len(row) > 3
    ]
    assert documented[2:] == [
        (field.name, msgspec.json.encode("" if default is None else default).decode().strip('"'))
        for field in msgspec.structs.fields(SlurmSettings)
        for default in [getattr(SlurmSettings(), field.name)]
    ]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"partition": "a b"}, "partition: 'a b' does not go there; write a name as Slurm has it"),
        ({"directory": "tmp"}, "directory: 'tmp' does not go there; write an absolute path"),
        ({"shared": "yes"}, "shared: 'yes' is neither true nor false; write one of them"),
        ({"port": 70000}, "port: 70000 is too much; write 65535 or less"),
        ({"lease": 1}, "lease: 1 is too little; write 5 or more"),
        ({"lease": "90"}, "lease: '90' is no number; write one, without quotes"),
        ({"port": 1.5}, "port: 1.5 is no whole number"),
        ({"qos": 7}, "qos: 7 is no text; put it in quotes"),
        ({"queue": "pbs"}, "queue: 'pbs' is none of 'slurm', 'trainshed'"),
        ({"extra": "--time=5"}, "extra: '--time=5' is no list; put it in brackets"),
        ({"extra": ["--time=5", "-x"]}, "extra[1]: '-x' does not go there; write an option"),
        ({"extra": ["--wckey"] * 51}, "extra: has 51 entries; write 50 at most"),
        ({"users": "ada"}, "users: 'ada' is no table; write NAME = VALUE"),
        ({"users": {"vision": "9"}}, "users.vision: '9' does not go there; write the name of a"),
        ({"machines": [{"qos": 1}]}, "machines[0].qos: 1 is no text"),
        ({"accelerators": {"T4": "t4"}}, "'T4'. Did you mean NVIDIA_TESLA_T4?"),
    ],
)
def test_a_value_that_does_not_go_is_told_with_what_does(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="slurm") as caught:
        parse(table)
    assert text in str(caught.value)
    assert "regex" not in str(caught.value)
