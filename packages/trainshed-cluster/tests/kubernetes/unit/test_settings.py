"""The table [engines.kubernetes]: bounds, and everything that is wrong at once."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.sources import ROOT
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse

IMAGE = {"image": "registry.example/trainshed-base:1"}


def test_an_image_is_all_that_has_to_be_set() -> None:
    settings = parse(IMAGE)
    assert settings.run_as == 1000 and settings.lease == 300
    assert settings == parse({**IMAGE, "kubeconfig": "", "scheduler": "", "cache": ""})
    with pytest.raises(ValueError, match=r"\[engines.kubernetes\] image: it is missing"):
        parse({})


def test_everything_that_is_wrong_is_named_at_once() -> None:
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
            "nvidia.com/gpu on the same nodes stands for NVIDIA_L4 already",
        ),
        ({"machines": [{"types": ["n1-standard-3"]}]}, "no machine type is called 'n1-standard-3'"),
        ({"machines": [{"node_selector": {"a": "b"}}]}, "names neither types nor accelerators"),
        (
            {"machines": [{"types": ["n1-*"]}, {"types": ["n1-standard-4"]}]},
            "machines[1]: those before it are for all of its machines already",
        ),
    ],
)
def test_what_cannot_mean_anything_is_refused(table: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse({**IMAGE, **table})
    assert text in str(caught.value)


def test_where_the_kubeconfig_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert parse(IMAGE).kubeconfig_path == str(Path("~/.kube/config").expanduser())
    monkeypatch.setenv("KUBECONFIG", "/etc/lab.conf")
    assert parse(IMAGE).kubeconfig_path == "/etc/lab.conf"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert parse(IMAGE).kubeconfig_path is None
    assert parse({**IMAGE, "kubeconfig": "/etc/mine"}).kubeconfig_path == "/etc/mine"


def test_the_page_has_every_setting_with_its_default_in_order() -> None:
    """docs/kubernetes.md#settings."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    rows = re.findall(
        r"^\| `([a-z_]+)` \| (?:`([^`]*)`)? ?\|", page.partition("## Settings")[2], re.M
    )
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
            written = str(default).lower() if isinstance(default, bool) else str(default)
            assert shown == (written if default is not None else ""), name
