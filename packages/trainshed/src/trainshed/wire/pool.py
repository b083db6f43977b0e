"""Provides the message classes from a private descriptor pool. Each API is loaded into the pool at its first
use.

This module owns the pool and the data files, which `tools/build_descriptors.py` creates. It must not use
protobuf's default pool, because the clients' SDK registers the same file names there
(spec/invariants#private-pool). Protobuf is imported for the first message, since its import takes about 60
ms.
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
"""The APIs with a descriptor set in this package. Each set also contains the shared messages (operations,
statuses, policies)."""

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

    Loads the API's descriptor set if necessary. May be called from any thread. Raises KeyError for an unknown
    name; its message contains advice.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(message_descriptor(full_name))


def message(full_name: str, **fields: Any) -> Any:
    """Return a public message with these fields. Enum values may be names. Raises KeyError as `message_class`
    does."""
    return message_class(full_name)(**fields)


def message_descriptor(full_name: str) -> "descriptor.Descriptor":
    """Return the descriptor of a public message. Raises KeyError as `message_class` does."""
    home = (api for prefix, api in _PREFIXES.items() if full_name.startswith(prefix))
    load(next(home, "aiplatform_v1"))
    try:
        return pool().FindMessageTypeByName(full_name)
    except KeyError:
        raise KeyError(
            f"No public message has the name {full_name!r}. Check the name against the packages "
            f"of the served APIs ({', '.join(APIS)})."
        ) from None


@cache
def load(api: Api) -> None:
    """Add an API's files to the pool, if they are not in it yet. Blocks while another thread adds them."""
    with _lock:
        from google.protobuf import descriptor_pb2

        for file in descriptor_pb2.FileDescriptorSet.FromString(read_data(f"{api}.binpb.gz")).file:
            # Serialize deterministically: the pool accepts a file that it already contains only if the bytes
            # are the same.
            pool().AddSerializedFile(file.SerializeToString(deterministic=True))


def pool() -> "descriptor_pool.DescriptorPool":
    """Return the private pool of this process, for protobuf functions that require a pool argument."""
    with _lock:
        return _pool()


@cache
def _pool() -> "descriptor_pool.DescriptorPool":
    from google.protobuf import descriptor_pool

    return descriptor_pool.DescriptorPool()


class _Types:
    """The message types that an Any may contain, with the interface that `json_format` requires. Names of
    `v1beta1` refer to `v1` messages, since the pool contains only these."""

    def FindMessageTypeByName(self, name: str) -> "descriptor.Descriptor":  # noqa: N802 protobuf's name
        return message_descriptor(name.replace(".v1beta1.", ".v1."))


TYPES: Final[Any] = _Types()
"""Argument for protobuf functions that require a descriptor pool."""


def discovery_document(api: str, root_url: str) -> bytes:
    """Return the discovery document of `ml_v1` or `logging_v2` as JSON, for a service at `root_url`.

    `root_url` is scheme and authority (`http://127.0.0.1:8080`; a trailing slash is allowed). The document
    contains only the served methods, without descriptions.
    """
    document: dict[str, Any] = json.loads(read_data(f"{api}.discovery.json.gz"))
    root = root_url.rstrip("/") + "/"
    document |= {"rootUrl": root, "baseUrl": root + document["servicePath"], "basePath": ""}
    return json.dumps(document, separators=(",", ":")).encode()


def read_data(name: str) -> bytes:
    """Return the decompressed contents of a data file."""
    # Opened by path, because `importlib.resources` would import the zip library.
    return gzip.decompress((_DATA / name).read_bytes())
