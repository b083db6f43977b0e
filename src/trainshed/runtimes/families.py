"""The registry of runtime families: a new one is a folder with a sheet and one line here."""

from trainshed.runtimes.python.sheet import SHEET as PYTHON
from trainshed.runtimes.pytorch.sheet import SHEET as PYTORCH
from trainshed.runtimes.reduction_server.sheet import SHEET as REDUCTION_SERVER
from trainshed.runtimes.scikit_learn.sheet import SHEET as SCIKIT_LEARN
from trainshed.runtimes.sheet import Sheet
from trainshed.runtimes.tensorflow.sheet import SHEET as TENSORFLOW
from trainshed.runtimes.xgboost.sheet import SHEET as XGBOOST

FAMILIES: tuple[Sheet, ...] = (
    SCIKIT_LEARN,
    PYTHON,
    XGBOOST,
    PYTORCH,
    TENSORFLOW,
    REDUCTION_SERVER,
)
"""The first one is the service's default."""


def sheet_of(family: str) -> Sheet | None:
    """The sheet of a family, if it is registered."""
    return next((sheet for sheet in FAMILIES if sheet.family == family), None)
