"""Records that could not be read and were set aside, so that all others go on. Nothing of them is lost."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecordSetAside:
    """`source`: the table that it was in, `key`: its key there, columns joined by `/`; `label`: what people call it, "" =
    the key will do; `cause`: why it cannot be read; `at`: when it was set aside (ns)."""

    source: str
    key: str
    label: str
    cause: str
    at: int

    def __str__(self) -> str:
        called = f" ({self.label})" if self.label else ""
        return f"{_NAMES.get(self.source, self.source)} {self.key}{called}: {self.cause}"


_NAMES = {
    "jobs": "job",
    "timeline": "timeline entry",
    "intents": "cancel or drill",
    "operations": "operation",
    "drill_plans": "drill plan",
    "studies": "study",
    "trials": "trial",
    "measurements": "measurement",
    "model_versions": "model version",
    "persistent_resources": "persistent resource",
}
ADVICE = (
    "Another version of the service, or a damaged disk, may have written it. It lies in the table set_aside of trainshed.db; "
    "a backup of before can be restored (`trainshed restore`), and nothing else depends on it."
)
"""What to do about a record that was set aside."""
