-- Pipeline jobs of the addition trainshed-pipelines: their compiled pipelines, the records of their tasks, and the outputs that
-- later runs may use. A trigger deletes the rows of a deleted pipeline job. Entries of the cache outlive it.
CREATE TABLE pipeline_specs (
    run_uid INTEGER PRIMARY KEY,
    spec    BLOB NOT NULL
) STRICT;

CREATE TABLE pipeline_tasks (
    run_uid INTEGER NOT NULL,
    number  INTEGER NOT NULL,
    record  BLOB NOT NULL,
    PRIMARY KEY (run_uid, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER pipeline_job_deleted AFTER DELETE ON works WHEN OLD.kind = 'pipeline_job' BEGIN
    DELETE FROM pipeline_specs WHERE run_uid = OLD.uid;
    DELETE FROM pipeline_tasks WHERE run_uid = OLD.uid;
END;

-- The newest successful task with each fingerprint. `source`: PIPELINE_JOB_NAME#NUMBER.
CREATE TABLE pipeline_cache (
    project_id  TEXT NOT NULL,
    location    TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    template    TEXT NOT NULL,
    task        TEXT NOT NULL,
    source      TEXT NOT NULL,
    stored      INTEGER NOT NULL,
    outputs     BLOB NOT NULL,
    PRIMARY KEY (project_id, location, fingerprint)
) STRICT, WITHOUT ROWID;

CREATE INDEX pipeline_cache_by_task ON pipeline_cache (project_id, template, task);

-- `next_run`: time of the next run (ns), NULL = none. Only active schedules have a next run.
CREATE TABLE pipeline_schedules (
    project_id  TEXT NOT NULL,
    location    TEXT NOT NULL,
    schedule_id TEXT NOT NULL,
    next_run    INTEGER,
    record      BLOB NOT NULL,
    PRIMARY KEY (project_id, location, schedule_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX pipeline_schedules_by_next_run ON pipeline_schedules (next_run) WHERE next_run IS NOT NULL;
