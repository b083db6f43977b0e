"""Statements about trials and measurements that several doors make within their own transactions."""

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from trainshed.core.errors import NotFound
from trainshed.core.study.trials import Measurement, StudyUid, Trial
from trainshed.store.codec import encode_measurement, encode_trial
from trainshed.store.port import StaleCommit
from trainshed.store.sqlite.rows import Parameters
from trainshed.store.statements import load_statements
from trainshed.store.studies import StoredTrial

_SQL = load_statements("trainshed.store.sqlite", "trials.sql")


def trial_parameters(trial: Trial) -> Parameters:
    return {
        "study_uid": trial.study,
        "number": trial.number,
        "record": encode_trial(trial),
    }


def measurement_parameters(study: StudyUid, number: int, measurement: Measurement) -> Parameters:
    return {
        "study_uid": study,
        "number": number,
        "step": measurement.step,
        "elapsed": measurement.elapsed,
        "record": encode_measurement(measurement),
    }


def put_trials(connection: sqlite3.Connection, rows: Iterable[Parameters]) -> None:
    """New trials, or in place of those of their numbers, whatever these were."""
    connection.executemany(_SQL["put_trial"], rows)


def put_measurements(connection: sqlite3.Connection, rows: Iterable[Parameters]) -> None:
    """In place of ones of the same step and elapsed time."""
    connection.executemany(_SQL["put_measurement"], rows)


def add_trial(connection: sqlite3.Connection, trial: Trial) -> Trial:
    """Store a new trial under the next number of its study, which a client made. Raises NotFound (no such study)."""
    # fetchall, not fetchone: a statement that RETURNING leaves half read would block the COMMIT.
    rows = connection.execute(_SQL["next_number"], {"study_uid": trial.study}).fetchall()
    if not rows:
        raise NotFound(
            f"the study with number {trial.study} does not exist; it may have been deleted meanwhile"
        )
    numbered = replace(trial, number=rows[0][0])
    connection.execute(_SQL["insert_trial"], trial_parameters(numbered))
    return numbered


def change_trial(connection: sqlite3.Connection, stored: StoredTrial) -> int:
    """Store what has become of a trial; returns the new generation. Raises StaleCommit (it is not of the generation
    that `stored` says, or is gone)."""
    trial, expected = stored.trial, stored.generation
    guarded = trial_parameters(trial) | {"expected_generation": expected}
    if connection.execute(_SQL["change_trial"], guarded).rowcount != 1:
        raise StaleCommit(
            f"trial {trial.number} of study {trial.study}: generation {expected} is not the one that is stored, "
            "or the trial was deleted; load it again"
        )
    return expected + 1
