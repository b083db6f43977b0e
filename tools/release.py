"""Build the files of a release twice, and copy them to dist/ if both builds are identical: `./dev release`.

The files are: a source archive and a wheel of each distribution; wheels of the reducers with their C library;
the documentation site in a directory of its version; the packages of the service with all engines, with
hashes (`requirements.txt`) and as CycloneDX in its wheel (PEP 770); and the SHA-256 of all files. Nothing is
published.
"""

import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tools import site

from trainshed_reduction.native import library
from trainshed_reduction.native.__main__ import FLAGS

ROOT: Final = Path(__file__).resolve().parent.parent
_LOCK: Final = ROOT / "locks/kubernetes.txt"
"""Requirements of the service with all engines."""
_LOCKED: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_ZIG: Final = (
    *(str(Path(sys.executable).with_name("uv")), "run", "--no-project", "--quiet"),
    *("--with", "ziglang==0.17.1", "python", "-m", "ziglang", "cc"),
)
"""The command of a C compiler for all platforms, which uv installs from a Python package."""
_GLIBC: Final = "2.17"
"""The C library version of the platform tag: manylinux_2_17. Older C libraries are not supported."""
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def main() -> None:
    if _git("status", "--porcelain"):
        sys.exit("The checkout has uncommitted changes. Commit them or use a fresh clone.")
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        for place in (first, second):
            build(Path(place))
            pages = site.build(Path(place, "site"))
            pack(pages, site.VERSION, Path(place, f"trainshed-docs-{site.VERSION}.tar.gz"))
            shutil.rmtree(Path(place, "site"))
            for machine in ("x86_64", "aarch64"):
                target = (*_ZIG, "-target", f"{machine}-linux-gnu.{_GLIBC}")
                tag = f"manylinux_{_GLIBC.replace('.', '_')}_{machine}"
                compiled_wheel(Path(place), target, machine, tag)
        sums = digests(Path(first))
        if sums != digests(Path(second)):
            differing = sorted(set(sums.items()) ^ set(digests(Path(second)).items()))
            sys.exit(f"Two builds differ in: {', '.join(name for name, _ in differing)}")
        dist = ROOT / "dist"
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(first, dist)
    lines = [f"{digest}  {name}\n" for name, digest in sums.items()]
    (dist / "SHA256SUMS").write_text("".join(lines))
    for name in sums:
        sys.stdout.write(f"{(dist / name).stat().st_size / 1e6:8.2f} MB  {name}\n")


def build(place: Path, *names: str) -> None:
    """Build all files in a directory. `names`: the distributions, including the service. Raises
    subprocess.CalledProcessError."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": _moment()}
    for package in sorted((ROOT / "packages").iterdir()):
        if names and package.name not in names:
            continue
        uv = [Path(sys.executable).with_name("uv"), "build", "--quiet", package, "--out-dir", place]
        subprocess.run(uv, env=environ, check=True)
    (place / ".gitignore").unlink(missing_ok=True)
    # The project's own packages are the wheels in this directory.
    shutil.copyfile(_LOCK, place / "requirements.txt")
    [wheel] = place.glob("trainshed-*.whl")
    about = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    content = json.dumps(bill_of_materials(), indent=1).encode()
    _repack(wheel, wheel, {f"{about}/sboms/sbom.cdx.json": content})


def pack(directory: Path, name: str, archive: Path) -> None:
    """Write a directory into an archive, under the path `name`. The same files produce the same bytes."""
    moment = int(_moment())

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime, info.uid, info.gid, info.uname, info.gname = moment, 0, 0, "", ""
        info.mode = 0o755 if info.isdir() else 0o644
        return info

    with (
        archive.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=moment) as squeezed,
        tarfile.open(mode="w", fileobj=squeezed) as tar,
    ):
        tar.add(directory, name, filter=plain)


def compiled_wheel(place: Path, compiler: Sequence[str], machine: str, tag: str) -> Path:
    """Build the wheel of the reducers with their C library, for one architecture and platform tag, from the
    plain wheel in `place`. Raises subprocess.CalledProcessError.
    """
    [plain] = place.glob("trainshed_reduction-*-none-any.whl")
    with tempfile.TemporaryDirectory() as workspace:
        made = Path(workspace) / "library.so"
        sources = [library.DIRECTORY / name for name in library.SOURCES if name.endswith(".c")]
        # Strip the library, because debugging information contains directory names.
        subprocess.run([*compiler, *FLAGS, "-s", "-o", made, *sources], check=True)
        added = {f"trainshed_reduction/native/{library.name(machine)}": made.read_bytes()}
    wheel = plain.with_name(plain.name.replace("-any.whl", f"-{tag}.whl"))
    _repack(plain, wheel, added, tag)
    return wheel


def _repack(plain: Path, wheel: Path, added: Mapping[str, bytes], tag: str | None = None) -> None:
    """Write a copy of a wheel with additional files. `tag`: the platform tag of the copy, if it has one."""
    with zipfile.ZipFile(plain) as old:
        moment = old.infolist()[0].date_time
        members = {info.filename: old.read(info) for info in old.infolist()}
    members.update(added)
    [record] = (name for name in members if name.endswith(".dist-info/RECORD"))
    if tag is not None:
        about = record.replace("RECORD", "WHEEL")
        tagged = members[about].replace(b"-none-any", b"-none-" + tag.encode())
        members[about] = tagged.replace(b"Purelib: true", b"Purelib: false")
    del members[record]
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in members.items()]
    members[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    with zipfile.ZipFile(wheel, "w") as new:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, moment)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            new.writestr(info, content)


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def bill_of_materials() -> dict[str, Any]:
    """Return the bill of materials: each package in `requirements.txt` with its version and hashes."""
    project = tomllib.loads((ROOT / "packages/trainshed/pyproject.toml").read_text())["project"]
    components: list[dict[str, Any]] = []
    for line in _LOCK.read_text().splitlines():
        if locked := _LOCKED.match(line):
            name, version = locked.groups()
            purl = f"pkg:pypi/{name}@{version}"
            known = {"type": "library", "name": name, "version": version, "purl": purl}
            components.append({**known, "bom-ref": purl, "hashes": []})
        components[-1]["hashes"] += [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(line)]
    service = {"type": "application", "name": project["name"], "version": project["version"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": service},
        "components": components,
    }


def digests(place: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, by the file's name."""
    files = sorted(file for file in place.iterdir() if file.is_file())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def _moment() -> str:
    """Return the time of the commit, in seconds since the epoch."""
    return _git("log", "-1", "--format=%ct")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
