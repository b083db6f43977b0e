"""The store's port for evaluations of models and their slices, which are deleted with their version of the
model. Contract suite: tests/contract/store."""

from collections.abc import Sequence
from typing import Protocol

from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines.records import EvaluationSlice, ModelEvaluation


class Evaluations(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(self, evaluation: ModelEvaluation) -> None:
        """Store an evaluation. Raises NotFound (no such version of the model)."""
        ...

    async def evaluation(self, name: EvaluationName) -> ModelEvaluation:
        """Raises NotFound."""
        ...

    async def evaluations(
        self, model: ModelName, version: int, below: int, limit: int
    ) -> tuple[ModelEvaluation, ...]:
        """Return the evaluations of one version, newest first, with ids below `below` if that is not 0."""
        ...

    async def add_slices(self, slices: Sequence[EvaluationSlice]) -> None:
        """Add slices of one evaluation, all or none; their dimensions become those of the evaluation. Raises
        NotFound (no such evaluation)."""
        ...

    async def slice(self, name: EvaluationName, slice_id: int) -> EvaluationSlice:
        """Raises NotFound."""
        ...

    async def slices(
        self, name: EvaluationName, after: int, limit: int
    ) -> tuple[EvaluationSlice, ...]:
        """Return the slices of one evaluation in the order in which they were added, with ids above `after`.
        Raises NotFound (no such evaluation)."""
        ...
