"""What has to exist before the event loop: data directory, children, store, listening socket. In this order,
because children are forked before there are threads."""

import contextlib
import errno
import socket
from collections.abc import Generator

from trainshed.access.tokens import TokenAuthority, TokenFileUnreadable
from trainshed.buckets.sockets import listen_tcp
from trainshed.engines.local.zygotes import ZygoteHandle
from trainshed.serve import clock, memory
from trainshed.serve.children import BucketKeeper, BucketPlace, ForkedBuckets
from trainshed.serve.service import Parts, owner_token
from trainshed.serve.settings import Settings
from trainshed.store.port import StoreInUse, StoreTooNew, StoreUnreadable
from trainshed.store.registry import open_store


class StartFailed(Exception):
    """The service cannot start. The message says why and what to do."""


@contextlib.contextmanager
def assembled(settings: Settings, zygote: ZygoteHandle) -> Generator[Parts]:
    """Everything a `Service` is made of; closed again at the end. Raises StartFailed."""
    with contextlib.ExitStack() as cleanup:
        memory.settle()
        buckets = ForkedBuckets()
        try:
            parts = _open_in_order(settings, zygote, buckets, cleanup)
        except BaseException:
            buckets.dismiss()
            raise
        yield parts


def _open_in_order(
    settings: Settings,
    zygote: ZygoteHandle,
    buckets: ForkedBuckets,
    cleanup: contextlib.ExitStack,
) -> Parts:
    """The store first: its lock says whether the data directory is ours."""
    try:
        store = open_store(settings.database, settings.data)
        cleanup.callback(store.close)
        tokens = TokenAuthority.open(settings.data / "tokens.json", clock.now)
        token = owner_token(settings.data, tokens)
    except (StoreInUse, StoreTooNew, StoreUnreadable, TokenFileUnreadable, OSError) as failure:
        raise StartFailed(str(failure)) from failure
    listener = _listen(settings)
    cleanup.callback(listener.close)
    wanted = BucketPlace(
        root=settings.data / "buckets",
        socket=settings.data / "buckets.sock",
        host=settings.host,
        port=_beside(settings),
    )
    try:
        place = buckets.serve(wanted)
    except OSError as failure:
        raise StartFailed(
            f"The buckets in {wanted.root} cannot be served: {failure}. "
            "What the bucket process said above tells why."
        ) from failure
    return Parts(
        settings=settings,
        listener=listener,
        zygote=zygote,
        buckets=BucketKeeper(place, buckets.pid),
        storage_port=place.port,
        bucket_socket=place.socket,
        store=store,
        token=token,
        tokens=tokens,
    )


def _beside(settings: Settings) -> int:
    """A port for the buckets that stays the same from start to start: the next one, if it is free."""
    if not 0 < settings.port < 65535:
        return 0
    try:
        listen_tcp(settings.host, settings.port + 1).close()
    except OSError:
        return 0
    return settings.port + 1


def _listen(settings: Settings) -> socket.socket:
    try:
        listener = listen_tcp(settings.host, settings.port)
    except OSError as failure:
        advice = (
            "Stop what uses it, or choose another port with --port (0 = any free one)."
            if failure.errno == errno.EADDRINUSE
            else "Choose an address of this machine with --host, or another port with --port."
        )
        raise StartFailed(
            f"{settings.host}:{settings.port} cannot be listened on: {failure.strerror}. {advice}"
        ) from failure
    listener.setblocking(False)
    return listener
