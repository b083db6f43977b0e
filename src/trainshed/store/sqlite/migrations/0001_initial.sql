-- Every name that a job ever had. Rows are never removed: names are not used twice.
CREATE TABLE job_names (
    api        TEXT NOT NULL,
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    uid        INTEGER NOT NULL,
    PRIMARY KEY (api, project_id, location, job_id)
) STRICT, WITHOUT ROWID;

-- `record` is rewritten by the controller's commits, `labels` by requests: neither overwrites the other.
CREATE TABLE jobs (
    uid            INTEGER PRIMARY KEY,
    api            TEXT NOT NULL,
    project_id     TEXT NOT NULL,
    location       TEXT NOT NULL,
    job_id         TEXT NOT NULL,
    state          TEXT NOT NULL,
    is_live        INTEGER NOT NULL CHECK (is_live IN (0, 1)),
    created        INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    labels_version INTEGER NOT NULL,
    labels_updated INTEGER NOT NULL,
    labels         BLOB NOT NULL,
    record         BLOB NOT NULL
) STRICT;

-- Holds only jobs that are not over, so that its size does not follow the history.
CREATE INDEX jobs_live ON jobs (uid) WHERE is_live = 1;

-- One index per shape of list, each ending in the order of the pages.
CREATE INDEX jobs_by_location ON jobs (project_id, api, location, uid);
CREATE INDEX jobs_by_api ON jobs (project_id, api, uid);
CREATE INDEX jobs_by_project ON jobs (project_id, uid);

CREATE INDEX jobs_by_job_id ON jobs (job_id, uid);

CREATE TABLE timeline (
    job_uid INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    message TEXT NOT NULL,
    details BLOB NOT NULL,
    PRIMARY KEY (job_uid, seq)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a consumed number never comes back for another intent.
CREATE TABLE intents (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job_uid INTEGER NOT NULL,
    intent  BLOB NOT NULL
) STRICT;

CREATE INDEX intents_by_job ON intents (job_uid, seq);

CREATE TABLE operations (
    name    TEXT PRIMARY KEY,
    kind    TEXT NOT NULL,
    target  TEXT NOT NULL,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE leader (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL
) STRICT;

INSERT INTO leader (id, epoch, owner) VALUES (1, 0, '');
