-- What a record in `jobs` is ('job', all that there were so far, 'tuning' or 'pipeline') and what lists go by, apart from
-- its wide rows: neither a new column nor an index here makes SQLite read all records.
-- `parent_uid`: of the work that made this one, 0 = a client did.
CREATE TABLE works (
    uid        INTEGER PRIMARY KEY,
    project_id TEXT NOT NULL,
    api        TEXT NOT NULL,
    location   TEXT NOT NULL,
    kind       TEXT NOT NULL,
    parent_uid INTEGER NOT NULL
) STRICT;

INSERT INTO works (uid, project_id, api, location, kind, parent_uid)
SELECT uid, project_id, api, location, 'job', 0 FROM jobs INDEXED BY jobs_by_location ORDER BY uid;

DROP INDEX jobs_by_location;
DROP INDEX jobs_by_api;
DROP INDEX jobs_by_project;

-- One index per shape of list, each ending in the order of the pages. Only the lists of one collection, and of one
-- parent, hold what other works made: the others cost the same beside any number of trials.
CREATE INDEX works_by_collection ON works (project_id, api, location, kind, uid);
CREATE INDEX works_by_kind ON works (project_id, api, kind, uid);
CREATE INDEX works_by_location ON works (project_id, api, location, uid) WHERE parent_uid = 0;
CREATE INDEX works_by_api ON works (project_id, api, uid) WHERE parent_uid = 0;
CREATE INDEX works_by_project ON works (project_id, uid) WHERE parent_uid = 0;
CREATE INDEX works_by_client ON works (uid) WHERE parent_uid = 0;
CREATE INDEX works_by_parent ON works (parent_uid, uid) WHERE parent_uid <> 0;

CREATE TABLE studies (
    uid          INTEGER PRIMARY KEY,
    project_id   TEXT NOT NULL,
    location     TEXT NOT NULL,
    study_id     TEXT NOT NULL,
    display_name TEXT NOT NULL,
    record       BLOB NOT NULL,
    UNIQUE (project_id, location, study_id),
    UNIQUE (project_id, location, display_name)
) STRICT;

CREATE INDEX studies_by_location ON studies (project_id, location, uid);

-- The highest number that a trial of a client's study ever had: numbers are not used twice. A row for each study.
CREATE TABLE trial_numbers (
    study_uid INTEGER PRIMARY KEY,
    last      INTEGER NOT NULL
) STRICT;

-- Of clients' studies and of tuning jobs, whose uid is that of their study. They lie by study and number, so that
-- a study's history is read in one go.
CREATE TABLE trials (
    study_uid  INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    record     BLOB NOT NULL,
    PRIMARY KEY (study_uid, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE measurements (
    study_uid INTEGER NOT NULL,
    number    INTEGER NOT NULL,
    step      INTEGER NOT NULL,
    elapsed   INTEGER NOT NULL,
    record    BLOB NOT NULL,
    PRIMARY KEY (study_uid, number, step, elapsed)
) STRICT, WITHOUT ROWID;

-- A model that was deleted keeps its row, with is_there = 0: a page of a list may end with it. `made`: its first version.
CREATE TABLE models (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    model_id   TEXT NOT NULL,
    made       INTEGER NOT NULL,
    is_there   INTEGER NOT NULL CHECK (is_there IN (0, 1)),
    PRIMARY KEY (project_id, location, model_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX models_by_age ON models (project_id, location, made, model_id) WHERE is_there = 1;

-- Which aliases of its record a version still has, `model_aliases` says: another version may have taken them.
CREATE TABLE model_versions (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    model_id   TEXT NOT NULL,
    version    INTEGER NOT NULL,
    record     BLOB NOT NULL,
    PRIMARY KEY (project_id, location, model_id, version)
) STRICT;

CREATE TABLE model_aliases (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    model_id   TEXT NOT NULL,
    alias      TEXT NOT NULL,
    version    INTEGER NOT NULL,
    PRIMARY KEY (project_id, location, model_id, alias)
) STRICT, WITHOUT ROWID;

CREATE TABLE persistent_resources (
    name   TEXT PRIMARY KEY,
    record BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Operations may run now, and come to a result. All that there were so far are deletes that are done.
ALTER TABLE operations RENAME TO done_operations;

CREATE TABLE operations (
    name       TEXT PRIMARY KEY,
    study_uid  INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    is_running INTEGER NOT NULL CHECK (is_running IN (0, 1)),
    record     BLOB NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO operations (name, study_uid, created, is_running, record)
SELECT name, 0, created, 0, CAST(
    json_object('name', name, 'kind', 'delete', 'target', target, 'created', created, 'updated', updated) AS BLOB
)
FROM done_operations;

DROP TABLE done_operations;

-- Holds only what is not done, so that its size does not follow the history.
CREATE INDEX operations_running ON operations (created, name) WHERE is_running = 1;
-- Those that are done as well: they go with their study.
CREATE INDEX operations_of_study ON operations (study_uid, is_running, created, name) WHERE study_uid <> 0;
