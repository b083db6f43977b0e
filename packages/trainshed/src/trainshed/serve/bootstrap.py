"""Opens the resources that the service needs before its event loop starts: data directory, store, listening
sockets."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from trainshed.access import sealing
from trainshed.access.book import FILE, AccessFile, book_of
from trainshed.access.job_tokens import KEY_FILE, JobKeyUnreadable, JobTokens
from trainshed.access.tokens import TokenAuthority, digest_of, new_token
from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketRules, BucketSetup, cannot_serve
from trainshed.httpd.hosts import parse_list
from trainshed.replica.system import durable
from trainshed.replica.system.listening import listen_tcp, listen_unix
from trainshed.serve import certificates, clock
from trainshed.serve.addresses import own_hosts
from trainshed.serve.backup.manifest import UNFINISHED
from trainshed.serve.certificates import Certificates, CertificatesUnusable
from trainshed.serve.children import BucketKeeper
from trainshed.serve.issuers import Issuers
from trainshed.serve.ports import SystemdSockets, open_grpc_ports, open_socket, port_near_rest
from trainshed.serve.settings import Settings, speaks_tls
from trainshed.serve.start_errors import ServiceStartFailed, start_errors
from trainshed.store.access_keeper import AccessKeeper
from trainshed.store.port import StoreInUse, StoreUnreadable
from trainshed.store.sqlite.database import Store, open_database


class Bootstrap:
    """The resources that exist before the event loop starts."""

    def __init__(self, settings: Settings, cleanup: contextlib.ExitStack) -> None:
        """Open all resources. The store is opened first, because its lock prevents a second service from
        using the data directory. Raises ServiceStartFailed."""
        self.settings = settings
        if (settings.data / UNFINISHED).exists():
            raise ServiceStartFailed(
                f"A restore into {settings.data} is in progress or was interrupted. Wait until it "
                "finishes, or empty the directory and restore the backup again."
            )
        try:
            self.store = open_database(settings.data)
            cleanup.callback(self.store.close)
            #: Issues and checks the tokens of programs.
            self.jobs = JobTokens.open(settings.data / KEY_FILE, clock.now)
            #: The token of the service's owner.
            self.token = owner_token(settings.data)
            #: Authenticates people by their tokens.
            self.tokens = _token_authority(settings.data, self.store, self.token, self.jobs)
            owner = digest_of(self.token)
            self.access = AccessKeeper(self.store.access, self.tokens, owner, settings.data, clock.now)
            self.sealer = sealing.Sealer(settings.data / sealing.FILE, os.environ)
            # Remove the sealing key, because later child processes, including setup scripts of users, inherit
            # the environment.
            os.environ.pop(sealing.VARIABLE, None)
        except (StoreInUse, StoreUnreadable, JobKeyUnreadable, sealing.KeyUnusable) as failure:
            raise ServiceStartFailed(str(failure)) from failure
        except OSError as failure:
            where = f"{failure.filename}: " if failure.filename else ""
            raise ServiceStartFailed(
                f"The data directory {settings.data} cannot be used: {where}{failure.strerror}. Fix the "
                "cause, or choose another directory with --data or $TRAINSHED_DATA."
            ) from failure
        passed = SystemdSockets(settings, cleanup)
        #: The listening socket of REST, and whether systemd holds it.
        self.is_activated = passed.rest is not None
        self.listener = passed.rest or open_socket(listen_tcp, settings.host, settings.port, "--port")
        self.listener.setblocking(False)
        cleanup.callback(self.listener.close)
        #: The Unix sockets on which replicas' endpoints reach REST and gRPC. gRPC creates its socket itself.
        #: Programs do not see the sockets. The paths are the same at each start, because replicas survive the
        #: service.
        self.programs_path = settings.data / "programs.sock"
        self.programs_grpc_path = settings.data / "programs-grpc.sock"
        with start_errors(f"The socket for programs in {settings.data} cannot be opened"):
            #: The listening Unix socket of REST.
            self.programs = listen_unix(self.programs_path)
        cleanup.callback(self.programs.close)
        threads = ThreadPoolExecutor(1, "certificates")
        #: A future that finishes when the certificates exist. They are created while the service starts.
        self.certified = threads.submit(_certify, settings)
        threads.shutdown(wait=False)
        if settings.tls_cert:
            # Wait for the check of the user's certificate, so that no other part starts if it is unusable.
            self.certified.result()
        #: Listening sockets of gRPC that systemd keeps, by the fields of `GrpcPorts`.
        self.passed_grpc = passed.grpc
        self.grpc = open_grpc_ports(settings, cleanup, passed.grpc)
        setup = _bucket_setup(settings, self.programs_path)
        place = f"{setup.host}:{setup.port} and in {Path(setup.replicas).parent}"
        with start_errors(f"The ports of buckets at {place} cannot be opened"):
            listeners = Listeners.open(setup, passed.buckets)
        cleanup.callback(listeners.close)
        self.buckets = BucketKeeper(setup, listeners)
        self.bucket_rules = setup.rules
        #: The TCP ports of the bucket process, without TLS and with TLS.
        self.storage_port, self.storage_tls_port = listeners.ports()
        #: The Unix sockets of the bucket process: one for replicas, one only for the service's gateway.
        self.bucket_socket, self.gateway_socket = Path(setup.replicas), Path(setup.gateway)
        self.issuers = Issuers(settings.oidc, self.access, clock.now)
        self.tokens.issuers, self.tokens.hosts = self.issuers.marks, own_hosts(settings)

    @property
    def ports(self) -> tuple[int, ...]:
        grpc = (self.grpc.plain[1], self.grpc.secure[1])
        ports = (self.listener.getsockname()[1], *grpc, self.storage_port, self.storage_tls_port)
        return tuple(filter(None, ports))


def _bucket_setup(settings: Settings, service: Path) -> BucketSetup:
    """Return the setup of the bucket process. Raises ServiceStartFailed if the settings of buckets are
    invalid."""
    root = settings.data / "buckets"
    local = [path.name for path in root.iterdir()] if root.is_dir() else []
    if cause := cannot_serve(settings.buckets, local):
        raise ServiceStartFailed(cause)
    secure = certificates.server_files(settings.data / "tls")
    if settings.tls_cert and settings.tls_key:
        secure = Path(settings.tls_cert), Path(settings.tls_key)
    return BucketSetup(
        root=str(root),
        gateway=str(settings.data / "gateway.sock"),
        replicas=str(settings.data / "buckets.sock"),
        host=settings.host,
        port=port_near_rest(settings, 1, settings.host),
        tls_port=port_near_rest(settings, 4, settings.host),
        certificate=str(secure[0]),
        key=str(secure[1]),
        tls=speaks_tls(settings),
        tokens=str(settings.data / FILE),
        service=str(service),
        hosts=own_hosts(settings),
        rules=BucketRules(settings.project, settings.buckets),
    )


def _certify(settings: Settings) -> Certificates:
    """Create or renew the files of `certificates.prepare_interception`, and the certificates for TLS unless
    the user provides one. Raises ServiceStartFailed."""
    directory, now = settings.data / "tls", clock.now() / 1e9
    with start_errors(f"The certificates in {directory} cannot be stored"):
        try:
            if settings.tls_cert and settings.tls_key:
                chain, key = Path(settings.tls_cert), Path(settings.tls_key)
                served = certificates.provided_certificates(chain, key, directory)
            else:
                further = parse_list(settings.allowed_hosts)
                served = certificates.prepare_own_certificates(directory, settings.host, now, further)
            certificates.prepare_interception(settings.data, now, os.environ)
        except CertificatesUnusable as failure:
            raise ServiceStartFailed(str(failure)) from failure
    return served


def owner_token(data: Path) -> str:
    """Return the token of the service's owner. It is created at the first start, and only the owner of its
    file can read it (docs/adr/0007).

    If the file is missing or empty, a new token is created. The service's owner can replace a lost or exposed
    token in this way.
    """
    path = data / "owner.token"
    if path.exists() and (token := path.read_text().strip()):
        return token
    token = new_token()
    durable.write(str(path), token + "\n")
    return token


def _token_authority(data: Path, store: Store, token: str, jobs: JobTokens) -> TokenAuthority:
    """Return the authority that checks tokens, and write the bucket process's copy of its data. Raises
    StoreUnreadable, OSError."""
    entries, _ = store.access.load()
    try:
        book = book_of(entries)
    except ValueError as error:
        raise StoreUnreadable(
            f"The tokens and roles in the database of {data} cannot be read ({error}). Restore a backup"
        ) from error
    owner = digest_of(token)
    durable.write(str(data / FILE), msgspec.json.encode(AccessFile.of(owner, entries)))
    return TokenAuthority(book, owner, clock.now, jobs)
