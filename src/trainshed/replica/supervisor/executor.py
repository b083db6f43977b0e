"""Installs a job's packages inside a container image, then becomes the job's program. Runs on Python 3.6.

Its own text is handed to the image's Python on the command line, so that nothing of ours has to be in the
image.
"""

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


def wrapped(package_uris: "tuple[str, ...]", argv: "tuple[str, ...]") -> "tuple[str, ...]":
    """The command line that installs the packages in their order and goes on as `argv`."""
    import inspect

    source = inspect.getsource(sys.modules[__name__])
    return ("python3", "-c", source, *package_uris, _END, *argv)


def main(given: "list[str]") -> None:
    """`given`: package URIs, `--`, the command line of the program."""
    end = given.index(_END)
    settle_base()
    scratch = tempfile.mkdtemp(prefix="packages-")
    for number, uri in enumerate(given[:end]):
        say("Installing the package: %s" % uri)
        install(fetched(uri, os.path.join(scratch, str(number))))
    shutil.rmtree(scratch)
    command = given[end + 1 :]
    say("Running command: %s" % " ".join(command))
    os.execvp(command[0], command)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def settle_base() -> None:
    """See that there is a user base to install into, and that its commands are found."""
    home = os.path.expanduser("~")
    if not os.access(home, os.W_OK):
        os.environ["PYTHONUSERBASE"] = tempfile.mkdtemp(prefix="python-")
    base = os.environ.get("PYTHONUSERBASE") or site.getuserbase()
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + os.pathsep + os.path.join(base, "bin")


def fetched(uri: str, directory: str) -> str:
    """A file with the package: in the bucket's directory where that is shown, else a copy from the storage
    endpoint."""
    bucket, _, name = uri[len(_SCHEME) :].partition("/")
    shown = os.path.join("/gcs", bucket, name)
    if os.path.isfile(shown):
        return shown
    endpoint = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com").rstrip("/")
    address = "%s/storage/v1/b/%s/o/%s?alt=media" % (
        endpoint,
        urllib.parse.quote(bucket, safe=""),
        urllib.parse.quote(name, safe=""),
    )
    os.mkdir(directory)
    place = os.path.join(directory, os.path.basename(name))
    try:
        with urllib.request.urlopen(address) as answer, open(place, "wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as failure:
        sys.exit("The package %s cannot be fetched: %s" % (uri, failure))
    return place


def install(path: str) -> None:
    """By pip, as the public service does: the package itself whatever is there already, then what it
    needs."""
    pip = [sys.executable, "-m", "pip", "install"]
    # A virtual environment has no user base of its own.
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
        say("Running command: %s" % " ".join(command))
        status = subprocess.call(command, env=environ)
        if status:
            sys.exit("Command %r returned non-zero exit status %d." % (command, status))


def is_plain(path: str) -> bool:
    """Whether it is a source package that the image's own setuptools build: then no index has to be reached
    for others."""
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
