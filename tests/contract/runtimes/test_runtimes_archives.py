"""Hostile archives (path traversal, links, zip bombs) during a complete installation: nothing is
written outside (spec/program#isolation)."""

import base64
import contextlib
import hashlib
import io
import stat
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.runtimes.conftest import Workshop
from trainshed.runtimes.port import BuildFailed, PackageFailed

_SETUP = "from setuptools import setup; setup(name={name!r}, version='1', py_modules=['trap'])"
_UP = "../" * 24


@dataclass(frozen=True)
class Outside:
    """Places that an archive must not write to. Every planted file has `word` in its name."""

    word: str
    place: Path
    secret: Path

    @property
    def targets(self) -> list[str]:
        """Return paths to these places: absolute ones, and relative ones with `..`."""
        absolute = [str(self.place / self.word), f"/tmp/{self.word}", f"/etc/{self.word}"]
        return absolute + [_UP + path[1:] for path in absolute]

    def planted_files(self, cache: Path) -> list[str]:
        """Return the planted files, including those beside the package's layer in the cache. Files
        below a directory of uv's own unpacking do not count."""
        places = [self.place, Path("/tmp"), Path("/etc"), cache, *cache.glob("*")]
        there = [str(path) for place in places for path in place.glob(f"{self.word}*")]
        shared = (cache / "uv").rglob(f"{self.word}*")
        return there + [str(path) for path in shared if "archive-v0" not in path.parts]


@pytest.fixture
def outside(workshop: Workshop, tmp_path: Path) -> Iterator[Outside]:
    word = f"planted{uuid.uuid4().hex}"
    yield Outside(word, workshop.data, workshop.data / "secret")
    for path in (Path("/tmp") / word, Path("/etc") / word, workshop.data / word):
        path.unlink(missing_ok=True)


def _prepare(workshop: Workshop, name: str, content: bytes) -> Path | None:
    """Return the layer, or None. Such a package may be installed or rejected."""
    uri = f"gs://b/{uuid.uuid4().hex}/{name}"
    workshop.objects.content[uri] = content
    with contextlib.suppress(PackageFailed, BuildFailed):
        return Path(workshop.prepare(uri).template).parent
    return None


def _check(layer: Path | None, outside: Outside, cache: Path) -> None:
    assert not outside.planted_files(cache)
    secret = outside.secret.read_text()
    assert secret == "a secret of the service"
    for path in layer.rglob("*") if layer else ():
        mode = path.lstat().st_mode
        assert not mode & (stat.S_ISUID | stat.S_ISGID), path
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode), path
        if stat.S_ISREG(mode) and path.stat().st_size < 4096:
            assert secret.encode() not in path.read_bytes(), path


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, link, 0o4777
    member.devmajor, member.devminor = 1, 3
    return member


_KINDS = {
    "names": [],
    "links": [tarfile.SYMTYPE, tarfile.LNKTYPE],
    "devices": [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
}


@pytest.mark.parametrize("kind", _KINDS)
def test_tar_path_traversal_writes_nothing_outside(workshop: Workshop, outside: Outside, kind: str) -> None:
    name = f"trap{uuid.uuid4().hex}"
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:

        def add(member: tarfile.TarInfo, text: str = "") -> None:
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))

        add(_member(f"{name}-1/trap.py"), "x = 1\n")
        for number, target in enumerate(outside.targets):
            if kind == "names":
                add(_member(target), "planted")
                add(_member(f"{name}-1/{target}"), "planted")
            for type_ in _KINDS[kind]:
                for word, leads in (("l", target), ("s", str(outside.secret))):
                    link = leads if kind == "links" else ""
                    add(_member(f"{name}-1/{word}{number}{type_.decode()}", type_, link))
        if kind == "links":
            # A member behind a link to a directory.
            add(_member(f"{name}-1/way", tarfile.SYMTYPE, str(outside.place)))
            add(_member(f"{name}-1/way/{outside.word}"), "planted")
            add(_member(f"{name}-1/trap2.py", tarfile.SYMTYPE, str(outside.secret)))
        setup = _SETUP.format(name=name)
        if kind == "links":
            setup = setup.replace("['trap']", "['trap', 'trap2']")
        add(_member(f"{name}-1/setup.py"), setup)
    layer = _prepare(workshop, f"{name}-1.tar.gz", made.getvalue())
    _check(layer, outside, workshop.cache)


def test_zip_path_traversal_writes_nothing_outside(workshop: Workshop, outside: Outside) -> None:
    name = f"trap{uuid.uuid4().hex}"
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        # Members with such names are skipped, and the following ones are unpacked.
        for target in outside.targets:
            archive.writestr(f"{name}-1/{target}", "planted")
            archive.writestr(target, "planted")
        _add_links(archive, f"{name}-1", outside)
        archive.writestr(f"{name}-1/trap.py", "x = 1\n")
        archive.writestr(f"{name}-1/setup.py", _SETUP.format(name=name))
    layer = _prepare(workshop, f"{name}-1.zip", made.getvalue())
    _check(layer, outside, workshop.cache)


def _add_links(archive: zipfile.ZipFile, top: str, outside: Outside) -> None:
    for place, target in (("way", str(outside.place)), ("secret.py", str(outside.secret))):
        link = zipfile.ZipInfo(f"{top}/{place}")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, target)
    archive.writestr(f"{top}/way/{outside.word}", "planted")


@pytest.mark.parametrize("kind", ["names", "links", "scripts", "data"])
def test_wheel_path_traversal_writes_nothing_outside(workshop: Workshop, outside: Outside, kind: str) -> None:
    """Installing a wheel runs no script, so only member names can attack. "names" also contains
    special mode bits and matching records."""
    name = f"trap{uuid.uuid4().hex}"
    info = f"{name}-1.dist-info"
    files = {
        "trap.py": "x = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if kind == "names":
        files |= dict.fromkeys(outside.targets, "planted")
    elif kind == "scripts":
        lines = [f"{target} = trap:x" for target in outside.targets]
        files[f"{info}/entry_points.txt"] = "[console_scripts]\n" + "\n".join(lines)
    elif kind == "data":
        for scheme in ("scripts", "data", "headers", "purelib"):
            files |= {f"{name}-1.data/{scheme}/{target}": "planted" for target in outside.targets}
            files[f"{name}-1.data/{scheme}{_UP}tmp/{outside.word}"] = "planted"
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text.encode())}"
        for path, text in files.items()
    ]
    if kind == "names":
        record += [f"{_UP}{str(outside.secret)[1:]},,", f"{outside.secret},,"]
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for path, text in files.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (stat.S_IFREG | (0o6777 if kind == "names" else 0o644)) << 16
            archive.writestr(member, text)
        if kind == "links":
            _add_links(archive, name, outside)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]))
    layer = _prepare(workshop, f"{name}-1-py3-none-any.whl", made.getvalue())
    _check(layer, outside, workshop.cache)
