"""Installs a job's packages inside a container image, and then becomes the job's program. Runs on Python 3.6.
The image's Python receives the text of this module on the command line, so the image needs no other code."""

import hashlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request

_END = "--"
_SCHEME = "gs://"


def wrap_command(packages: "tuple[tuple[str, str], ...]", argv: "tuple[str, ...]") -> "tuple[str, ...]":
    """Return the command line that installs the packages in their order and then runs `argv`. `packages`: the
    URI of each package, and the first digits of its SHA-256 ("" = not pinned)."""
    import inspect

    source = inspect.getsource(sys.modules[__name__])
    words = (word for package in packages for word in package)
    return ("python3", "-c", source, *words, _END, *argv)


def main(words: "list[str]") -> None:
    """Run the module inside the image. `words`: URI and digest of each package, `--`, the program's
    command."""
    end = words.index(_END)
    prepare_user_base()
    scratch = tempfile.mkdtemp(prefix="packages-")
    for number in range(0, end, 2):
        uri, digest = words[number : number + 2]
        print_line("Installing the package: %s" % uri)
        install(fetch(uri, digest, os.path.join(scratch, str(number // 2))))
    shutil.rmtree(scratch)
    command = words[end + 1 :]
    print_line("Running command: %s" % " ".join(command))
    os.execvp(command[0], command)


def print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def prepare_user_base() -> None:
    """Ensure that pip can install into the user base, and that PATH contains its commands. If the home is not
    writable, the user base is a temporary directory."""
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        os.environ["PYTHONUSERBASE"] = tempfile.mkdtemp(prefix="python-")
    base = os.environ.get("PYTHONUSERBASE") or site.getuserbase()
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + os.pathsep + os.path.join(base, "bin")


def fetch(uri: str, digest: str, directory: str) -> str:
    """Copy the package into `directory` and return the path of the copy. The source is its file below /gcs if
    the bucket is mounted, and otherwise the storage endpoint. Exits if the copy fails, or if its digest
    differs from `digest`."""
    bucket, _, name = uri[len(_SCHEME) :].partition("/")
    shown = os.path.join("/gcs", bucket, name)
    os.mkdir(directory)
    place = os.path.join(directory, os.path.basename(name))
    # Check and install a copy, because other programs may overwrite the object in between.
    if os.path.isfile(shown):
        shutil.copyfile(shown, place)
    else:
        download(uri, bucket, name, place)
    check(uri, digest, place)
    return place


def check(uri: str, digest: str, path: str) -> None:
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            hashed.update(block)
    if not hashed.hexdigest().startswith(digest):
        sys.exit(
            "The package %s has changed since the job was created: its SHA-256 began with %s, and is now %s. "
            "Nothing of it was run. Submit the job again to use the new package."
            % (uri, digest, hashed.hexdigest())
        )


def download(uri: str, bucket: str, name: str, place: str) -> None:
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    address = "%s/storage/v1/b/%s/o/%s?alt=media" % (
        endpoint,
        urllib.parse.quote(bucket, safe=""),
        urllib.parse.quote(name, safe=""),
    )
    try:
        with urllib.request.urlopen(address) as answer, open(place, "wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as failure:
        sys.exit("The package %s cannot be fetched: %s" % (uri, failure))


def install(path: str) -> None:
    """Install a package with pip, like the public service: first the package itself, even if it is installed
    already, and then its requirements. Exits on failure."""
    pip = [sys.executable, "-m", "pip", "install"]
    # Install into the user base, except in a virtual environment, where pip rejects --user.
    if sys.prefix == sys.base_prefix:
        pip.append("--user")
    if is_plain(path):
        pip.append("--no-build-isolation")
    quiet = {
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_NO_WARN_SCRIPT_LOCATION": "1",
    }
    environ = dict(quiet, **os.environ)
    for more in (["--upgrade", "--force-reinstall", "--no-deps", path], [path]):
        command = pip + more
        print_line("Running command: %s" % " ".join(command))
        status = subprocess.call(command, env=environ)
        if status:
            sys.exit("Command %r returned non-zero exit status %d." % (command, status))


def is_plain(path: str) -> bool:
    """Whether the image's own setuptools can build the package: a source package without a pyproject.toml.
    The build then needs no package index."""
    can_build = importlib.util.find_spec("setuptools") is not None and (
        importlib.util.find_spec("wheel") is not None
        or importlib.util.find_spec("setuptools.command.bdist_wheel") is not None
    )
    if not can_build or not path.endswith(".tar.gz"):
        return False
    with tarfile.open(path) as archive:
        return not any(name.endswith("/pyproject.toml") for name in archive.getnames())


if __name__ == "__main__":
    main(sys.argv[1:])
