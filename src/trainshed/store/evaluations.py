"""The store's port for evaluations of models, which are deleted with their version of the model. Contract
suite: tests/contract/store."""

from typing import Protocol

from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines.records import ModelEvaluation


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
