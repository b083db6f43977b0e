"""The table [engines.kubernetes]: its limits, and errors that are all reported at once."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sources import ROOT
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse

IMAGE = {"image": "registry.example/trainshed-base:1"}


def test_image_is_the_only_required_setting() -> None:
    settings = parse(IMAGE)
    assert settings.run_as == 1000 and settings.lease == 300
    assert settings == parse({**IMAGE, "kubeconfig": "", "scheduler": "", "cache": ""})
    with pytest.raises(ValueError, match=r"\[engines.kubernetes\] image: it is missing"):
        parse({})


def test_all_wrong_settings_are_reported_at_once() -> None:
    wrong = {
        **IMAGE,
        "namespce": "x",
        "port": 70000,
        "lease": 1,
        "namespaces": {"p": "Not A Namespace"},
        "tolerations": [{"kee": "a"}],
        "machines": [{"node_selector": {"pool": "a b"}}],
        "accelerators": {"NVIDIA_L4": {"resource": "gpu"}},
        "cache": "relative",
    }
    with pytest.raises(ValueError) as caught:
        parse(wrong)
    lines = str(caught.value).splitlines()
    assert all(line.startswith("[engines.kubernetes] ") for line in lines)
    assert "Did you mean namespaces?" in lines[0]
    for name in (
        "port",
        "lease",
        "namespaces.p",
        "tolerations[0].kee",
        "machines[0].node_selector",
        "accelerators.NVIDIA_L4.resource",
        "cache",
    ):
        assert sum(name in line for line in lines) == 1, name
    assert len(lines) == 8


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"accelerators": {"nvidia-l4": {}}}, "Did you mean NVIDIA_L4?"),
        (
            {"accelerators": {"NVIDIA_L4": {}, "NVIDIA_TESLA_T4": {}}},
            "nvidia.com/gpu of the same nodes is already used for NVIDIA_L4",
        ),
        ({"machines": [{"types": ["n1-standard-3"]}]}, "machine type 'n1-standard-3' does not exist"),
        ({"machines": [{"node_selector": {"a": "b"}}]}, "sets neither types nor accelerators"),
        (
            {"machines": [{"types": ["n1-*"]}, {"types": ["n1-standard-4"]}]},
            "machines[1]: earlier tables already cover all of its machines",
        ),
    ],
)
def test_contradictory_settings_are_rejected(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({**IMAGE, **table})
    assert text in str(caught.value)


def test_kubeconfig_path_is_read_from_the_settings_or_else_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert parse(IMAGE).kubeconfig_path == str(Path("~/.kube/config").expanduser())
    monkeypatch.setenv("KUBECONFIG", "/etc/lab.conf")
    assert parse(IMAGE).kubeconfig_path == "/etc/lab.conf"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert parse(IMAGE).kubeconfig_path is None
    assert parse({**IMAGE, "kubeconfig": "/etc/mine"}).kubeconfig_path == "/etc/mine"


def test_docs_list_every_setting_with_its_default() -> None:
    """docs/kubernetes.md#settings."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| (?:`([^`]*)`)? ?\|", page.partition("## Settings")[2], re.M)
    known = {
        field.name: field.default_factory()
        if field.default is msgspec.NODEFAULT and callable(field.default_factory)
        else field.default
        for field in msgspec.structs.fields(KubernetesSettings)
    }
    assert [name for name, _ in rows] == list(known)
    for name, shown in rows:
        default = known[name]
        if default is not msgspec.NODEFAULT:
            write = str(default).lower() if isinstance(default, bool) else str(default)
            assert shown == (write if default is not None else ""), name
