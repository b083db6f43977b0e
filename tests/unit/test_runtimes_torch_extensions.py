"""Extensions for GPUs beside a PyTorch for CPUs are taken out (what is left runs:
tests/contract/runtimes)."""

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


def test_what_needs_a_gpus_libraries_is_taken_out(tmp_path: Path) -> None:
    """The installer's own files, which these are further names of, stay as they are."""
    site = _site(tmp_path / "site", torch="libtorch_cpu.so")
    kept = tmp_path / "cached.py"
    kept.hardlink_to(site / "torchvision/extension.py")
    remove_unusable_extensions(site)
    assert _extensions(site) == []
    assert "_absent_operators" in (site / "torchvision/extension.py").read_text()
    assert (site / "torchvision/_absent_operators.py").is_file()
    assert kept.read_text() == "def _load_library(name): ...\n"


def test_a_layer_goes_by_the_pytorch_beneath_it(tmp_path: Path) -> None:
    layer = _site(tmp_path / "layer")
    remove_unusable_extensions(layer, _site(tmp_path / "base", torch="libtorch_cpu.so"))
    assert _extensions(layer) == []


@pytest.mark.parametrize(
    ("torch", "needs"), [("libtorch_cuda.so", b"libtorch_cuda.so"), ("libtorch_cpu.so", b"")]
)
def test_what_fits_stays(tmp_path: Path, torch: str, needs: bytes) -> None:
    site = _site(tmp_path, torch=torch, needs=needs)
    remove_unusable_extensions(site)
    assert _extensions(site) == ["_C.so", "_torchaudio.abi3.so"]
    assert "_absent" not in (site / "torchvision/extension.py").read_text()


def test_links_that_a_setup_script_made_are_not_followed(tmp_path: Path) -> None:
    """They would have the service read and write elsewhere."""
    elsewhere = _site(tmp_path / "elsewhere")
    layer = tmp_path / "layer"
    layer.mkdir()
    for name in ("torchvision", "torchaudio"):
        (layer / name).symlink_to(elsewhere / name)
    remove_unusable_extensions(layer, _site(tmp_path / "base", torch="libtorch_cpu.so"))
    assert _extensions(elsewhere) == ["_C.so", "_torchaudio.abi3.so"]
