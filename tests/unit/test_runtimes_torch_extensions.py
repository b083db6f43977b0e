"""Tests that GPU extensions are removed next to a PyTorch for CPUs. tests/contract/runtimes tests that the
rest runs."""

from pathlib import Path

import pytest

from trainshed.runtimes.torch_extensions import remove_unusable_extensions


def _site(root: Path, *, torch: str = "", needs: bytes = b"libtorch_cuda.so") -> Path:
    for name in ("torch/lib", "torchvision", "torchaudio/lib"):
        if torch or not name.startswith("torch/"):
            (root / name).mkdir(parents=True)
    if torch:
        (root / f"torch/lib/{torch}").touch()
    (root / "torchvision/extension.py").write_text("def _load_library(name): ...\n")
    for name in ("torchvision/_C.so", "torchaudio/lib/_torchaudio.abi3.so"):
        (root / name).write_bytes(b"ELF" + needs)
    return root


def _extensions(site: Path) -> list[str]:
    return sorted(path.name for path in site.rglob("*.so") if "torch/" not in str(path))


def test_extensions_with_gpu_libraries_are_removed_next_to_a_cpu_only_pytorch(tmp_path: Path) -> None:
    """Files in the installer's cache that are hard-linked to the removed files remain."""
    site = _site(tmp_path / "site", torch="libtorch_cpu.so")
    kept = tmp_path / "cached.py"
    kept.hardlink_to(site / "torchvision/extension.py")
    remove_unusable_extensions(site)
    assert _extensions(site) == []
    assert "_absent_operators" in (site / "torchvision/extension.py").read_text()
    assert (site / "torchvision/_absent_operators.py").is_file()
    assert kept.read_text() == "def _load_library(name): ...\n"


def test_extensions_with_gpu_libraries_are_removed_from_a_layer_on_cpu_only_pytorch(tmp_path: Path) -> None:
    layer = _site(tmp_path / "layer")
    remove_unusable_extensions(layer, _site(tmp_path / "base", torch="libtorch_cpu.so"))
    assert _extensions(layer) == []


@pytest.mark.parametrize(
    ("torch", "needs"), [("libtorch_cuda.so", b"libtorch_cuda.so"), ("libtorch_cpu.so", b"")]
)
def test_compatible_torch_extensions_are_not_removed(tmp_path: Path, torch: str, needs: bytes) -> None:
    site = _site(tmp_path, torch=torch, needs=needs)
    remove_unusable_extensions(site)
    assert _extensions(site) == ["_C.so", "_torchaudio.abi3.so"]
    assert "_absent" not in (site / "torchvision/extension.py").read_text()


def test_files_behind_links_in_a_layer_are_not_removed_as_unusable_extensions(tmp_path: Path) -> None:
    """Otherwise the service would read and write files outside the layer (path traversal)."""
    elsewhere = _site(tmp_path / "elsewhere")
    layer = tmp_path / "layer"
    layer.mkdir()
    for name in ("torchvision", "torchaudio"):
        (layer / name).symlink_to(elsewhere / name)
    remove_unusable_extensions(layer, _site(tmp_path / "base", torch="libtorch_cpu.so"))
    assert _extensions(elsewhere) == ["_C.so", "_torchaudio.abi3.so"]
