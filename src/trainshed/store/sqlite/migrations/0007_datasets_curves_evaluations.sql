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
