"""The secrets that a run was given, as an engine's door to them."""

from collections.abc import Collection, Mapping

from trainshed.core.secrets import SecretRef


class Given:
    """`values`: all that the program's variables name, which was checked before."""

    def __init__(self, values: Mapping[SecretRef, str]) -> None:
        self._values = values

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """As the protocol says."""
        return {ref: self._values[ref] for ref in refs}
