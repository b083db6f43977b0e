-- Curves of jobs: how far each event file was read, and the series that were found. Points are not here.
CREATE TABLE curve_files (
    job_uid INTEGER NOT NULL,
    path    TEXT NOT NULL,
    record  BLOB NOT NULL,
    PRIMARY KEY (job_uid, path)
) STRICT, WITHOUT ROWID;
CREATE TABLE curve_series (
    job_uid INTEGER NOT NULL,
    run     TEXT NOT NULL,
    tag     TEXT NOT NULL,
    record  BLOB NOT NULL,
    PRIMARY KEY (job_uid, run, tag)
) STRICT, WITHOUT ROWID;
-- Jobs whose event files may not have been read to their ends.
CREATE TABLE curve_jobs (
    job_uid INTEGER PRIMARY KEY
) STRICT;
-- Datasets: names of files, with what they are; no rows of theirs. `made`: ns.
CREATE TABLE datasets (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    dataset_id TEXT NOT NULL,
    made       INTEGER NOT NULL,
    record     BLOB NOT NULL,
    PRIMARY KEY (project_id, location, dataset_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX datasets_by_age ON datasets (project_id, location, made, dataset_id);

-- Evaluations of versions of models, and their slices.
CREATE TABLE model_evaluations (
    project_id    TEXT NOT NULL,
    location      TEXT NOT NULL,
    model_id      TEXT NOT NULL,
    evaluation_id INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    record        BLOB NOT NULL,
    PRIMARY KEY (project_id, location, model_id, evaluation_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX model_evaluations_by_version ON model_evaluations (project_id, location, model_id, version, evaluation_id);
CREATE TABLE model_evaluation_slices (
    project_id    TEXT NOT NULL,
    location      TEXT NOT NULL,
    model_id      TEXT NOT NULL,
    evaluation_id INTEGER NOT NULL,
    slice_id      INTEGER NOT NULL,
    record        BLOB NOT NULL,
    PRIMARY KEY (project_id, location, model_id, evaluation_id, slice_id)
) STRICT, WITHOUT ROWID;

-- Below which directory of a bucket each job writes, without a slash at its end: what lies there leads to its job.
CREATE TABLE job_outputs (
    project_id TEXT NOT NULL,
    uri        TEXT NOT NULL,
    job_uid    INTEGER NOT NULL,
    PRIMARY KEY (project_id, uri, job_uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_outputs_by_job ON job_outputs (job_uid);
