"""Opens what has to exist before the event loop: data directory, store, listening sockets."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import click
import msgspec

from trainshed.access import sealing
from trainshed.access.book import FILE, AccessFile, book_of
from trainshed.access.job_tokens import KEY_FILE, JobKeyUnreadable, JobTokens
from trainshed.access.tokens import TokenAuthority, digest_of, new_token
from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketRules, BucketSetup, cannot_serve
from trainshed.httpd.hosts import is_loopback, listed
from trainshed.replica.system import durable
from trainshed.replica.system.listening import hold_tcp, listen_tcp, listen_unix
from trainshed.serve import certificates, clock
from trainshed.serve.activation import ActivationUnusable, PassedSockets
from trainshed.serve.addresses import GrpcPorts, own_hosts
from trainshed.serve.backup.manifest import UNFINISHED
from trainshed.serve.certificates import Certificates, CertificatesUnusable
from trainshed.serve.children import BucketKeeper
from trainshed.serve.issuers import Issuers
from trainshed.serve.settings import Settings, speaks_tls
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.port import StoreInUse, StoreUnreadable
from trainshed.store.sqlite.database import Store, open_database


class StartFailed(click.ClickException):
    """The service cannot start. The message says why and what to do."""


class Bootstrap:
    """What exists before the event loop does."""

    def __init__(self, settings: Settings, cleanup: contextlib.ExitStack) -> None:
        """Open everything, beginning with the store: its lock decides whether the data directory is ours.
        Raises StartFailed."""
        self.settings = settings
        if (settings.data / UNFINISHED).exists():
            raise StartFailed(
                f"A restore into {settings.data} is under way, or was not finished. Wait for its end, or "
                "empty the directory and restore the backup again."
            )
        try:
            self.store = open_database(settings.data)
            cleanup.callback(self.store.close)
            #: Makes and checks the tokens of programs.
            self.jobs = JobTokens.open(settings.data / KEY_FILE, clock.now)
            #: The owner's token.
            self.token = owner_token(settings.data)
            #: Authenticates people by their tokens.
            self.tokens = _token_authority(settings.data, self.store, self.token, self.jobs)
            owner = digest_of(self.token)
            self.access = AccessKeeper(
                self.store.access, self.tokens, owner, settings.data, clock.now
            )
            self.sealer = sealing.Sealer(settings.data / sealing.FILE, os.environ)
            # Child processes from here on, including setup scripts of users, inherit the environment.
            os.environ.pop(sealing.VARIABLE, None)
        except (StoreInUse, StoreUnreadable, JobKeyUnreadable, sealing.KeyUnusable) as failure:
            raise StartFailed(str(failure)) from failure
        except OSError as failure:
            where = f"{failure.filename}: " if failure.filename else ""
            raise StartFailed(
                f"The data directory {settings.data} cannot be used: {where}{failure.strerror}. "
                "Mend that, or choose another one with --data or $TRAINSHED_DATA."
            ) from failure
        passed = _Passed(settings, cleanup)
        #: The listening socket of REST, and whether systemd keeps it.
        self.is_activated = passed.rest is not None
        self.listener = passed.rest or _open(listen_tcp, settings.host, settings.port, "--port")
        self.listener.setblocking(False)
        cleanup.callback(self.listener.close)
        #: The Unix sockets by which replicas' endpoints reach the APIs: that of REST, and that of gRPC, which
        #: makes it itself. Programs do not see them. The paths stay the same from start to start, because
        #: replicas outlive the service.
        self.programs_path = settings.data / "programs.sock"
        self.programs_grpc_path = settings.data / "programs-grpc.sock"
        with _explained(f"Programs cannot be listened to in {settings.data}"):
            #: The listening one.
            self.programs = listen_unix(self.programs_path)
        cleanup.callback(self.programs.close)
        threads = ThreadPoolExecutor(1, "certificates")
        #: Done when the certificates are there, which are made while the service starts.
        self.certified = threads.submit(_certify, settings)
        threads.shutdown(wait=False)
        if settings.tls_cert:
            self.certified.result()  # What the user gave is refused before anything has begun.
        #: Listening sockets of gRPC that systemd keeps, by the fields of `GrpcPorts`.
        self.passed_grpc = passed.grpc
        self.grpc = _grpc_ports(settings, cleanup, passed.grpc)
        setup = _bucket_setup(settings, self.programs_path)
        place = f"{setup.host}:{setup.port} and in {Path(setup.replicas).parent}"
        with _explained(f"The buckets cannot be listened for at {place}"):
            listeners = Listeners.opened(setup, passed.buckets)
        cleanup.callback(listeners.close)
        self.buckets = BucketKeeper(setup, listeners)
        self.bucket_rules = setup.rules
        #: The bucket process's own TCP ports, without and with TLS.
        self.storage_port, self.storage_tls_port = listeners.ports()
        #: The bucket process's Unix sockets: for replicas, and for the service's gateway alone.
        self.bucket_socket, self.gateway_socket = Path(setup.replicas), Path(setup.gateway)
        self.issuers = Issuers(settings.oidc, self.access, clock.now)
        self.tokens.issuers, self.tokens.hosts = self.issuers.marks, own_hosts(settings)

    @property
    def ports(self) -> tuple[int, ...]:
        grpc = (self.grpc.plain[1], self.grpc.secure[1])
        ports = (self.listener.getsockname()[1], *grpc, self.storage_port, self.storage_tls_port)
        return tuple(filter(None, ports))


class _Passed:
    """The listening sockets that systemd keeps for the service."""

    def __init__(self, settings: Settings, cleanup: contextlib.ExitStack) -> None:
        """Raises StartFailed if systemd keeps a socket that the service does not serve."""
        first, host = settings.port, settings.host
        plain, secure = settings.grpc_port or first + 2, settings.grpc_tls_port or first + 3
        try:
            sockets = PassedSockets(os.environ)
            self.rest = sockets.take(first, host)
            self.grpc = {
                "plain": sockets.take(plain, _plain_host(host)),
                "secure": sockets.take(secure, host),
            }
            buckets = {
                "plain": sockets.take(first + 1, host),
                "secure": sockets.take(first + 4, host),
            }
            sockets.require_none((first, first + 1, plain, secure, first + 4))
        except ActivationUnusable as failure:
            raise StartFailed(str(failure)) from failure
        self.buckets = {name: listener for name, listener in buckets.items() if listener}


def _bucket_setup(settings: Settings, service: Path) -> BucketSetup:
    """Return the setup of the bucket process. Raises StartFailed for buckets that cannot be served."""
    root = settings.data / "buckets"
    local = [path.name for path in root.iterdir()] if root.is_dir() else []
    if cause := cannot_serve(settings.buckets, local):
        raise StartFailed(cause)
    secure = certificates.server_files(settings.data / "tls")
    if settings.tls_cert and settings.tls_key:
        secure = Path(settings.tls_cert), Path(settings.tls_key)
    return BucketSetup(
        root=str(root),
        gateway=str(settings.data / "gateway.sock"),
        replicas=str(settings.data / "buckets.sock"),
        host=settings.host,
        port=_beside(settings, 1, settings.host),
        tls_port=_beside(settings, 4, settings.host),
        certificate=str(secure[0]),
        key=str(secure[1]),
        tls=speaks_tls(settings),
        tokens=str(settings.data / FILE),
        service=str(service),
        hosts=own_hosts(settings),
        rules=BucketRules(settings.project, settings.buckets),
    )


@contextlib.contextmanager
def _explained(what: str) -> Generator[None]:
    """Raise StartFailed with what to do about an OSError."""
    try:
        yield
    except OSError as failure:
        # A full disk is told elsewhere.
        raise StartFailed(
            f"{what}: {failure}. Mend that, or choose another directory, on a local file system, with "
            "--data, or another --port or --host."
        ) from failure


def _certify(settings: Settings) -> Certificates:
    """Make or renew the certificates for TLS, if the user gave none, and the files of
    `certificates.interception_files`. Raises StartFailed."""
    directory, now = settings.data / "tls", clock.now() / 1e9
    with _explained(f"The certificates in {directory} cannot be kept"):
        try:
            if settings.tls_cert and settings.tls_key:
                chain, key = Path(settings.tls_cert), Path(settings.tls_key)
                served = certificates.given(chain, key, directory)
            else:
                further = listed(settings.allowed_hosts)
                served = certificates.own(directory, settings.host, now, further)
            certificates.prepare_interception(settings.data, now, os.environ)
        except CertificatesUnusable as failure:
            raise StartFailed(str(failure)) from failure
    return served


def _plain_host(host: str) -> str:
    """Return where gRPC listens without TLS: only on loopback, because a token goes over the wire as it
    is."""
    return host if is_loopback(host) else "127.0.0.1"


def _grpc_ports(
    settings: Settings, cleanup: contextlib.ExitStack, passed: Mapping[str, socket.socket | None]
) -> GrpcPorts:
    """Choose the ports, and hold them for gRPC, which binds sockets of its own beside those that hold
    them. `passed`: sockets that are there already."""
    ports = [
        ("--grpc-port", _plain_host(settings.host), settings.grpc_port, 2),
        ("--grpc-tls-port", settings.host, settings.grpc_tls_port, 3),
    ]
    held = {
        f"--grpc-{'tls-' if name == 'secure' else ''}port": cleanup.enter_context(listener)
        for name, listener in passed.items()
        if listener is not None
    }
    # Ports that the user chose come before ports that are only the default.
    for option, host, port, distance in sorted(ports, key=lambda port: not port[2]):
        if option not in held:
            holder = _open(hold_tcp, host, port or _beside(settings, distance, host), option)
            held[option] = cleanup.enter_context(holder)
    plain, secure = (
        held[option].getsockname()[:2] for option in ("--grpc-port", "--grpc-tls-port")
    )
    return GrpcPorts(plain, secure)


def _beside(settings: Settings, distance: int, host: str) -> int:
    """Return the port that is `distance` above REST's, so that it stays the same from start to start; 0, any
    port, if it is not free."""
    port = settings.port + distance
    if not settings.port or port > 65535:
        return 0
    try:
        listen_tcp(host, port).close()
    except OSError:
        return 0
    return port


def _open(
    opened: Callable[[str, int], socket.socket], host: str, port: int, option: str
) -> socket.socket:
    try:
        return opened(host, port)
    except OSError as failure:
        advice = (
            f"Stop what uses it, or choose another port with {option} (0 = any free one)."
            if failure.errno == errno.EADDRINUSE
            else f"Choose an address of this machine with --host, or another port with {option}."
        )
        cause = str(failure.strerror).partition(" (while")[0]
        raise StartFailed(f"{host}:{port} cannot be listened on: {cause}. {advice}") from failure


def owner_token(data: Path) -> str:
    """Return the owner's token, made at the first start and readable only by its owner (docs/adr/0007). A new
    one is made if the file is gone or empty: so whoever has lost it, or given it away, gets in again."""
    path = data / "owner.token"
    if path.exists() and (token := path.read_text().strip()):
        return token
    token = new_token()
    durable.write(str(path), token + "\n")
    return token


def _token_authority(data: Path, store: Store, token: str, jobs: JobTokens) -> TokenAuthority:
    """Return what recognises tokens, and write the file by which the bucket process does. Raises
    StoreUnreadable, OSError."""
    entries, _ = store.access.load()
    try:
        book = book_of(entries)
    except ValueError as error:
        raise StoreUnreadable(
            f"the tokens and roles in the database of {data} cannot be read ({error}): restore a backup"
        ) from error
    owner = digest_of(token)
    durable.write(str(data / FILE), msgspec.json.encode(AccessFile.of(owner, entries)))
    return TokenAuthority(book, owner, clock.now, jobs)


class Exposed(click.ClickException):
    """Other users can write to the data directory, and this one cannot change that. The message says what to
    do."""


_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP


def close_to_others(data: Path) -> str | None:
    """Keep other users out of the data directory, but for a group that may read. Return what was open, for
    people; None = nothing. Raises Exposed."""
    status = data.stat()
    mode = stat.S_IMODE(status.st_mode)
    if not mode & _OTHERS:
        return None
    if mode & stat.S_ISVTX:
        raise Exposed(f"{data} is for files of all users. Choose a directory below it with --data.")
    if os.geteuid() in (0, status.st_uid):
        data.chmod(mode & ~_OTHERS)
        return (
            f"other users could enter {data} (mode {mode:04o}). It is closed now. If they could write there, "
            "look at whose its files are: ls -l; if somebody has read secrets, make new ones: "
            "docs/operate.md says how."
        )
    if mode & stat.S_IWOTH:
        raise Exposed(f"All can write to {data}: chmod go-w, or choose another by --data.")
    # A volume of somebody else's, as Kubernetes makes them: our files in it are ours alone.
    return None
