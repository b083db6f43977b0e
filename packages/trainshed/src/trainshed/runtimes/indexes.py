"""Passes pip's configured package indexes to uv, so that users behind a mirror need not configure both.

uv reads its own settings and none of pip's. If uv is configured, pip's settings are ignored.
"""

import configparser
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_UV_OWN = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_CONFIG_FILE")
_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert")
_FALSE = ("", "0", "false", "no", "off")


def index_environment(environ: Mapping[str, str], files: Iterable[Path] | None = None) -> dict[str, str]:
    """Return the variables that make uv use pip's configured indexes.

    `files`: pip's configuration files, lowest priority first (default: those of this machine). pip's
    variables override its files, and `[install]` overrides `[global]`. Variables rather than flags keep
    credentials in an index URL out of process lists.
    """
    if any(environ.get(name) for name in _UV_OWN) or _uv_configures_an_index(environ):
        return {}
    options = _from_files(_files(environ) if files is None else files)
    for option in _OPTIONS:
        value = environ.get("PIP_" + option.upper().replace("-", "_"))
        if value is not None:
            options[option] = value
    variables: dict[str, str] = {}
    if index := options.get("index-url"):
        variables["UV_DEFAULT_INDEX"] = index.strip()
    if extra := options.get("extra-index-url", "").split():
        variables["UV_INDEX"] = " ".join(extra)
        # Make uv choose the best version of all indexes, as pip does. By default, uv stops at the first index
        # that has the package.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if links := options.get("find-links", "").split():
        variables["UV_FIND_LINKS"] = ",".join(links)
    if options.get("no-index", "").lower() not in _FALSE:
        variables["UV_NO_INDEX"] = "1"
    if hosts := options.get("trusted-host", "").split():
        variables["UV_INSECURE_HOST"] = " ".join(hosts)
    if (certificate := options.get("cert")) and not environ.get("SSL_CERT_FILE"):
        variables["SSL_CERT_FILE"] = certificate
    return variables


def configures_indexes(environ: Mapping[str, str], files: Iterable[Path] | None = None) -> bool:
    """Return whether uv's or pip's settings configure a package index. `files`: as for
    `index_environment`."""
    variables = index_environment(environ, files)
    places = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX")
    has_own = any(environ.get(name) for name in (*_UV_OWN, "UV_TORCH_BACKEND"))
    return has_own or _uv_configures_an_index(environ) or any(name in variables for name in places)


def _uv_configures_an_index(environ: Mapping[str, str]) -> bool:
    home = Path(environ.get("HOME") or "/nonexistent")
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "uv" / "uv.toml"
    for path in (user, Path("/etc/uv/uv.toml")):
        with suppress(OSError, UnicodeDecodeError):
            if "index" in path.read_text():
                return True
    return False


def _files(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME") or "/nonexistent")
    config_file = environ.get("PIP_CONFIG_FILE")
    if config_file == os.devnull:
        return []
    shared = [
        Path(entry) / "pip" / "pip.conf" for entry in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    ]
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    mac = home / "Library" / "Application Support" / "pip" / "pip.conf"
    places = [*shared, Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user, mac]
    places.append(Path(sys.prefix) / "pip.conf")
    return [*places, Path(config_file)] if config_file else places


def _from_files(files: Iterable[Path]) -> dict[str, str]:
    options: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text())
        except (OSError, UnicodeDecodeError, configparser.Error):
            # Skip this file. Usually it does not exist. If it is unreadable, pip reports this itself.
            continue
        for section, settings in options.items():
            if parser.has_section(section):
                settings.update({name.replace("_", "-"): value for name, value in parser.items(section)})
    return {**options["global"], **options["install"]}
