"""Removes extensions of torchvision and torchaudio for GPUs from environments whose PyTorch is for CPUs.

The general package index has only builds for GPUs of these two packages. Their libraries do not load with a
PyTorch for CPUs, so that neither package can be imported. Without the extensions, both use other code for
most of their functions.
"""

from pathlib import Path

from trainshed.runtimes.trees import is_file, read_small

_STAND_IN = Path(__file__).parent / "pytorch" / "absent_operators.py"
_EXTENSIONS = ("torchvision/*.so", "torchaudio/lib/*.so")
_NEEDS_GPU = b"libtorch_cuda.so"
_PIECE = 1 << 20
_WITHOUT = """

# Added by the runtime: the compiled extensions are for GPUs, PyTorch is for CPUs.
from torchvision._absent_operators import assert_has_ops as _assert_has_ops
from torchvision._absent_operators import load_library as _load_library
"""


def remove_unusable_extensions(site: Path, *beneath: Path) -> None:
    """Make torchvision and torchaudio in `site` usable with their PyTorch, which may be built for CPUs. This
    PyTorch is in `site` or in the first site of `beneath` that has one. `beneath`: other sites that programs
    see. Files are replaced and never written to, because they may be hard links into the installer's cache.
    """
    extensions = [extension for pattern in _EXTENSIONS for extension in _files(site, pattern)]
    if not extensions or not _is_for_cpus(site, *beneath):
        return
    unusable = [extension for extension in extensions if _names(extension, _NEEDS_GPU)]
    for extension in unusable:
        extension.unlink()
    if any(extension.parent.name == "torchvision" for extension in unusable):
        for loader in _files(site, "torchvision/extension.py"):
            text = read_small(loader)
            if text is None:
                continue
            (loader.parent / "_absent_operators.py").write_bytes(_STAND_IN.read_bytes())
            draft = loader.with_suffix(".new")
            draft.write_bytes(text + _WITHOUT.encode())
            draft.replace(loader)


def _names(extension: Path, name: bytes) -> bool:
    """Return whether a library contains `name`. Reads the file in pieces, because it may be large."""
    last = b""
    with extension.open("rb") as file:
        while piece := file.read(_PIECE):
            if name in last + piece:
                return True
            last = piece[-len(name) :]
    return False


def _is_for_cpus(*sites: Path) -> bool:
    libraries = next((directory for site in sites if (directory := site / "torch/lib").is_dir()), None)
    return libraries is not None and not any(libraries.glob("libtorch_cuda*"))


def _files(site: Path, pattern: str) -> list[Path]:
    """Return the regular files in `site` that match the pattern. Links are skipped: a user's setup script may
    have created them, and the service would follow them."""
    folders = [site / parent for parent in Path(pattern).parents if parent != Path()]
    if any(folder.is_symlink() for folder in folders):
        return []
    return [path for path in site.glob(pattern) if is_file(path)]
