"""An `ml` v1 Study in public JSON becomes a `StudySpec`, or a list of everything wrong with it
(spec/tuning#studies, facts/tuning#vizier)."""

import re
from collections.abc import Mapping
from typing import Any

from trainshed.core.requests import Faults, Section
from trainshed.core.specs.study import ParsedStudy, read_algorithm, read_metrics
from trainshed.core.specs.study_parameters import ML_STUDY, read_parameters
from trainshed.core.specs.study_stopping import read_ml_stopping
from trainshed.core.study.spec import DecayCurveStopping, MedianStopping, StudySpec

_STUDY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def parse_ml_study(public: Mapping[str, Any], study_id: str) -> ParsedStudy:
    """Read a Study. Its id, chosen by the client, is its display name here.

    Raises InvalidRequest with every violation.
    """
    study = Section(public, "", Faults())
    if not _STUDY_ID.fullmatch(study_id):
        study.fault(
            "studyId",
            f"{study_id!r} is not a study id; it has 1 to 128 letters, digits, dashes and underscores, "
            "and begins with a letter or digit.",
        )
    config = study.section("studyConfig")
    parameters = read_parameters(config, "parameters", ML_STUDY)
    stopping = read_ml_stopping(config.section("automatedStoppingConfig"))
    spec = StudySpec(
        parameters=parameters,
        metrics=read_metrics(config, "metric"),
        algorithm=read_algorithm(config, parameters),
        median_stopping=stopping if isinstance(stopping, MedianStopping) else None,
        decay_curve_stopping=stopping if isinstance(stopping, DecayCurveStopping) else None,
    )
    study.faults.refuse()
    return ParsedStudy(study_id, spec)
