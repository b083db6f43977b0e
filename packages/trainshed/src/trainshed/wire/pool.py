"""Provides the message classes, from one private descriptor pool that is filled API by API on first use.

It owns the pool and the data files (made by `tools/build_descriptors.py`). It must not touch protobuf's
default pool: the clients' SDK registers the same file names there (spec/invariants#private-pool). Protobuf
itself (some 60 ms) is imported with the first message, not with this module.
"""

import gzip
import json
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf import descriptor, descriptor_pool

Api = Literal["aiplatform_v1", "ml_v1", "logging_v2", "resourcemanager_v3"]
"""The APIs whose descriptor sets ship. Shared messages (operations, statuses, policies) come with each of
them."""

APIS: Final[tuple[Api, ...]] = ("aiplatform_v1", "ml_v1", "logging_v2", "resourcemanager_v3")

_PREFIXES: Final[Mapping[str, Api]] = {
    "google.cloud.ml.v1.": "ml_v1",
    "google.logging.": "logging_v2",
    "google.cloud.audit.": "logging_v2",
    "google.cloud.resourcemanager.": "resourcemanager_v3",
}

_DATA: Final = Path(__file__).parent / "data"

_lock = threading.RLock()


@cache
def message_class(full_name: str) -> type[Message]:
    """Return the class of a public message, such as `google.cloud.aiplatform.v1.CustomJob`.

    Loads the set that defines it if that is not loaded yet. May be called from any thread. Raises KeyError,
    with what to check, for a name that no set defines.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(message_descriptor(full_name))


def message(full_name: str, **fields: Any) -> Any:
    """Return a public message with these fields; an enum's value may be its name. Raises KeyError as
    `message_class` does."""
    return message_class(full_name)(**fields)


def message_descriptor(full_name: str) -> "descriptor.Descriptor":
    """Return the descriptor of a public message. Raises KeyError as `message_class` does."""
    home = (api for prefix, api in _PREFIXES.items() if full_name.startswith(prefix))
    load(next(home, "aiplatform_v1"))
    try:
        return pool().FindMessageTypeByName(full_name)
    except KeyError:
        raise KeyError(
            f"no public message is called {full_name!r}: check the name against the packages "
            f"served ({', '.join(APIS)})"
        ) from None


@cache
def load(api: Api) -> None:
    """Add an API's files to the pool, once. Blocks while another thread does it."""
    with _lock:
        from google.protobuf import descriptor_pb2

        for file in descriptor_pb2.FileDescriptorSet.FromString(read_data(f"{api}.binpb.gz")).file:
            # A file that is there already has the same bytes, which the pool accepts.
            pool().AddSerializedFile(file.SerializeToString(deterministic=True))


def pool() -> "descriptor_pool.DescriptorPool":
    """Return the process's private pool, for protobuf functions that need one."""
    with _lock:
        return _pool()


@cache
def _pool() -> "descriptor_pool.DescriptorPool":
    from google.protobuf import descriptor_pool

    return descriptor_pool.DescriptorPool()


class _Types:
    """The types that an Any may hold, as `json_format` looks them up. Those of `v1beta1` are the same
    messages, and the pool has them once."""

    def FindMessageTypeByName(self, name: str) -> "descriptor.Descriptor":  # noqa: N802 protobuf's name
        return message_descriptor(name.replace(".v1beta1.", ".v1."))


TYPES: Final[Any] = _Types()
"""Stands for a descriptor pool."""


def discovery_document(api: str, root_url: str) -> bytes:
    """Return the discovery document of `ml_v1` or `logging_v2` as JSON, for a service at `root_url`.

    `root_url` is scheme and authority (`http://127.0.0.1:8080`, a trailing slash is allowed). The document
    names the served methods only and holds no descriptions.
    """
    document: dict[str, Any] = json.loads(read_data(f"{api}.discovery.json.gz"))
    root = root_url.rstrip("/") + "/"
    document |= {"rootUrl": root, "baseUrl": root + document["servicePath"], "basePath": ""}
    return json.dumps(document, separators=(",", ":")).encode()


def read_data(name: str) -> bytes:
    """Return the decompressed content of a data file."""
    # Read by its path, because `importlib.resources` would import the library for archives.
    return gzip.decompress((_DATA / name).read_bytes())
