"""Extensions of torchvision and torchaudio that are for GPUs, taken out where PyTorch is for CPUs.

The general package index has only such builds of them. Beside a PyTorch for CPUs their libraries do not load,
and without them neither can be imported. Both have other ways for most of what they do, which they go where
no extension is found.
"""

from pathlib import Path

from trainshed.runtimes.trees import is_file, read_small

_STAND_IN = Path(__file__).with_name("absent_operators.py")
_EXTENSIONS = ("torchvision/*.so", "torchaudio/lib/*.so")
_NEEDS_GPU = b"libtorch_cuda.so"
_PIECE = 1 << 20
_WITHOUT = """

# Added by the runtime: the compiled extensions are for GPUs, PyTorch is for CPUs.
from torchvision._absent_operators import assert_has_ops as _assert_has_ops
from torchvision._absent_operators import load_library as _load_library
"""


def take_out_unusable(site: Path, *beneath: Path) -> None:
    """Make torchvision and torchaudio in `site` usable beside the PyTorch there, or the first in `beneath`
    (sites that programs see as well). Files are replaced, never written to: they may be further names of the
    installer's own."""
    found = [extension for pattern in _EXTENSIONS for extension in _files(site, pattern)]
    if not found or not _is_for_cpus(site, *beneath):
        return
    unusable = [extension for extension in found if _names(extension, _NEEDS_GPU)]
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
    """Whether a library's text has the name in it; read piece by piece, for it may have any size."""
    last = b""
    with extension.open("rb") as file:
        while piece := file.read(_PIECE):
            if name in last + piece:
                return True
            last = piece[-len(name) :]
    return False


def _is_for_cpus(*sites: Path) -> bool:
    libraries = next((each for site in sites if (each := site / "torch/lib").is_dir()), None)
    return libraries is not None and not any(libraries.glob("libtorch_cuda*"))


def _files(site: Path, pattern: str) -> list[Path]:
    """Plain files alone: a setup script of a user may have made links, which would lead the service
    elsewhere."""
    folders = [site / parent for parent in Path(pattern).parents if parent != Path()]
    if any(folder.is_symlink() for folder in folders):
        return []
    return [path for path in site.glob(pattern) if is_file(path)]
