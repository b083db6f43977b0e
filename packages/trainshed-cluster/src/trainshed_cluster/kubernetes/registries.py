"""Reads the configuration of container images from registries. The cluster pulls and runs the images.

The service fetches only an image's manifest and configuration (OCI distribution, API v2).
"""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from trainshed.core.runtime import Image
from trainshed.runtimes.images.references import host_of, is_pinned, names_registry, tag_of

_TIMEOUT = 10.0
"""Seconds to wait for each response."""
_MAX_BYTES = 4 << 20
"""Maximum bytes of a manifest, a configuration or a token."""
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_DOCKER_HUB: Final = "docker.io"
_ARCHITECTURE = "amd64"
"""Architecture to read if an image exists for several architectures. Any architecture is sufficient, because
the images of all architectures start the same program."""


class UnreadableImage(Exception):
    """A registry did not return the requested content. The message contains the reason as a clause."""


class _Platform(msgspec.Struct):
    architecture: str = ""
    os: str = ""


class _Descriptor(msgspec.Struct):
    digest: str = ""
    platform: _Platform | None = None


class _Manifest(msgspec.Struct):
    """The manifest of an image, or an index of several manifests."""

    config: _Descriptor | None = None
    manifests: tuple[_Descriptor, ...] = ()


class _ImageConfig(msgspec.Struct, rename="pascal"):
    entrypoint: tuple[str, ...] | None = None
    cmd: tuple[str, ...] | None = None
    env: tuple[str, ...] | None = None
    working_dir: str = ""
    user: str = ""


class _Configuration(msgspec.Struct):
    config: _ImageConfig | None = None


class Registries:
    """Reads images' configurations from any registry.

    Args:
        auth: File with credentials, as written by `docker login` and `podman login`; None = no credentials.
        insecure: Hosts (`HOST[:PORT]`) to which connections do not use TLS.
    """

    def __init__(self, auth: Path | None = None, insecure: tuple[str, ...] = ()) -> None:
        self._auth = auth
        self._insecure = insecure

    def read(self, reference: str) -> Image:
        """Return the configuration of an image. If the configuration could not be read, the result contains
        the reason. Blocks."""
        try:
            return self._read(reference)
        except (UnreadableImage, ValueError) as failure:
            # ValueError: the registry's authentication URL is invalid.
            return Image(root=None, digest="", unread=str(failure))

    def _read(self, reference: str) -> Image:
        host, path = host_of(reference), _path_of(reference)
        version = reference.rpartition("@")[2] if is_pinned(reference) else tag_of(reference)
        repository = _Repository(self._base(host), path, self._login(host))
        manifest = repository.manifest(version)
        if manifest.config is None:
            manifest = repository.manifest(_choose_manifest(manifest))
        if manifest.config is None:
            raise UnreadableImage(f"the registry {host} stores an object of that name that is not an image")
        configuration = repository.get(f"blobs/{manifest.config.digest}", _Configuration, ())
        started = configuration.config or _ImageConfig()
        return Image(
            root=None,
            digest=manifest.config.digest.removeprefix("sha256:"),
            entrypoint=started.entrypoint or (),
            command=started.cmd or (),
            environ=tuple((name, value) for name, _, value in (v.partition("=") for v in started.env or ())),
            workdir=started.working_dir or None,
            user=started.user or None,
        )

    def _base(self, host: str) -> str:
        scheme = "http" if host in self._insecure else "https"
        return f"{scheme}://{'registry-1.docker.io' if host == _DOCKER_HUB else host}"

    def _login(self, host: str) -> str | None:
        """Return the credentials for a registry, `user:password` in base64; None = there are none. Raises
        UnreadableImage if the file with credentials is invalid."""
        if self._auth is None:
            return None
        try:
            known = json.loads(self._auth.read_bytes()).get("auths", {})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, AttributeError) as failure:
            raise UnreadableImage(
                f"cannot read the registry credentials in {self._auth} ({failure})"
            ) from failure
        names = [host, f"https://{host}", "https://index.docker.io/v1/"][: 2 + (host == _DOCKER_HUB)]
        return next((known[name].get("auth") for name in names if name in known), None)


class _Repository:
    """One repository of a registry, with the authorization for requests to it."""

    def __init__(self, base: str, path: str, login: str | None) -> None:
        self._base = base
        self._path = path
        self._login = login
        self._authorization: str | None = None

    def manifest(self, version: str) -> _Manifest:
        return self.get(f"manifests/{version}", _Manifest, (*_MANIFESTS, *_INDEXES))

    def get(self, what: str, kind: type[Any], accepted: tuple[str, ...]) -> Any:
        url = f"{self._base}/v2/{self._path}/{what}"
        headers = {"Accept": ", ".join(accepted)} if accepted else {}
        try:
            content = _fetch(url, headers, self._authorization)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 401 or self._authorization:
                raise _rejection(refusal, self._base) from refusal
            self._authorization = self._authorize(refusal.headers.get("WWW-Authenticate", ""))
            try:
                content = _fetch(url, headers, self._authorization)
            except urllib.error.HTTPError as second:
                raise _rejection(second, self._base) from second
        return _decode(content, kind, self._base)

    def _authorize(self, challenge: str) -> str:
        """Return the value of the header Authorization: the credentials, or a token that the registry issued
        for them. Raises UnreadableImage if the registry grants no access."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic" and self._login:
            return f"Basic {self._login}"
        if scheme.lower() != "bearer":
            raise UnreadableImage(
                f"the registry {self._base} requires credentials, and none are configured (see docker login)"
            )
        parameters = _parameters(rest)
        realm = parameters.pop("realm", "")
        if urlsplit(realm).scheme != "https" and not (
            self._base.startswith("http:") and realm.startswith("http:")
        ):
            raise UnreadableImage(
                f"the registry {self._base} requests credentials for {realm or 'an empty URL'}, which is "
                "not https"
            )
        parameters.setdefault("scope", f"repository:{self._path}:pull")
        url = f"{realm}?{urlencode(parameters)}"
        try:
            content = _fetch(url, {}, f"Basic {self._login}" if self._login else None)
        except urllib.error.HTTPError as refusal:
            raise _rejection(refusal, realm) from refusal
        answer: Mapping[str, Any] = _decode(content, dict[str, Any], realm)
        return f"Bearer {answer.get('token') or answer.get('access_token') or ''}"


def _fetch(url: str, headers: Mapping[str, str], authorization: str | None) -> bytes:
    """Return the content at a URL. Raises HTTPError, UnreadableImage."""
    request = urllib.request.Request(url, headers=dict(headers))
    if authorization:
        # Do not send the header to other hosts, such as a blob store to which the registry redirects.
        request.add_unredirected_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
            content = answer.read(_MAX_BYTES + 1)
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, http.client.HTTPException) as failure:
        reason = getattr(failure, "reason", failure)
        raise UnreadableImage(f"the registry {_host_of(url)} does not respond ({reason})") from failure
    if len(content) > _MAX_BYTES:
        raise UnreadableImage(
            f"the registry {_host_of(url)} sent more than {_MAX_BYTES >> 20} MiB, which is the limit"
        )
    return content


def _rejection(refusal: urllib.error.HTTPError, base: str) -> UnreadableImage:
    if refusal.code in (401, 403):
        return UnreadableImage(f"{_host_of(base)} denies access ({refusal.code})")
    if refusal.code == 404:
        return UnreadableImage(f"{_host_of(base)} has no image of that name")
    return UnreadableImage(f"{_host_of(base)} returned status {refusal.code}")


def _decode(content: bytes, kind: type[Any], base: str) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (ValueError, RecursionError) as failure:
        raise UnreadableImage(
            f"cannot parse the response of the registry {_host_of(base)} ({failure})"
        ) from failure


def _host_of(url: str) -> str:
    return urlsplit(url).netloc or url


def _path_of(reference: str) -> str:
    """Return the name of an image's repository in its registry."""
    name = reference.partition("@")[0]
    head, slash, last = name.rpartition("/")
    name = f"{head}{slash}{last.partition(':')[0]}"
    if names_registry(reference):
        name = name.partition("/")[2]
    if host_of(reference) == _DOCKER_HUB:
        name = name.removeprefix("docker.io/")
        return name if "/" in name else f"library/{name}"
    return name


def _choose_manifest(index: _Manifest) -> str:
    """Return the digest of the manifest to read from an index. Raises UnreadableImage if the index contains
    no suitable manifest."""
    ours = [
        descriptor
        for descriptor in index.manifests
        if descriptor.platform == _Platform(_ARCHITECTURE, "linux")
    ]
    chosen = next(iter((*ours, *index.manifests)), None)
    if chosen is None:
        raise UnreadableImage("the registry has no image of that name")
    return chosen.digest


def _parameters(text: str) -> dict[str, str]:
    """Return the parameters of an authentication challenge such as `realm="https://…",service="…"`."""
    parameters: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name:
            parameters[name.lower()] = value.strip('"')
    return parameters
