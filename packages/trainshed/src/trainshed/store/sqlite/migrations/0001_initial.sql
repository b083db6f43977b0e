-- The database of release 0.2.0.

-- Every name that a job ever had. Rows are never removed: names are not used twice.
CREATE TABLE job_names (
    api        TEXT NOT NULL,
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    uid        INTEGER NOT NULL,
    PRIMARY KEY (api, project_id, location, job_id)
) STRICT, WITHOUT ROWID;

-- The id of a Vertex job is its uid; here are those that somebody chose.
CREATE INDEX job_names_chosen ON job_names (job_id, uid) WHERE job_id <> CAST(uid AS TEXT);

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

-- What a record in `jobs` is (`kind`: 'job', 'tuning' or 'pipeline') and what lists go by and are narrowed by, apart from
-- its wide rows: neither a new column nor an index here makes SQLite read all records.
-- `parent_uid`: of the work that made this one, 0 = a client did, -1 = one that was deleted.
CREATE TABLE works (
    uid          INTEGER PRIMARY KEY,
    project_id   TEXT NOT NULL,
    api          TEXT NOT NULL,
    location     TEXT NOT NULL,
    kind         TEXT NOT NULL,
    parent_uid   INTEGER NOT NULL,
    state        TEXT NOT NULL,
    display_name TEXT NOT NULL,
    created      INTEGER NOT NULL
) STRICT;

-- One index holds every list of what clients made, and one those of what other works made: a list over several
-- locations or kinds is merged from its parts. Both end in the order of the pages.
CREATE INDEX works_of_clients ON works (project_id, api, location, kind, uid) WHERE parent_uid = 0;
CREATE INDEX works_of_works ON works (project_id, api, location, kind, uid) WHERE parent_uid <> 0;
CREATE INDEX works_by_client ON works (uid) WHERE parent_uid = 0;
CREATE INDEX works_by_parent ON works (parent_uid, uid) WHERE parent_uid <> 0;
CREATE INDEX works_by_state ON works (state, project_id);
CREATE INDEX works_by_display_name ON works (display_name);
-- A uid begins with the millisecond in which it was made (41 bits). Only works of another time need an index.
CREATE INDEX works_of_another_time ON works (created) WHERE abs((uid >> 22) - created / 1000000) > 1000;

-- For the numbers of jobs by state that a list shows.
CREATE INDEX works_of_clients_by_state ON works (state, project_id) WHERE parent_uid = 0;

-- Labels of works, one by one.
CREATE TABLE work_labels (
    uid   INTEGER NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (uid, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX work_labels_by_value ON work_labels (key, value);

CREATE TABLE timeline (
    job_uid INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    message TEXT NOT NULL,
    details BLOB NOT NULL,
    PRIMARY KEY (job_uid, seq)
) STRICT, WITHOUT ROWID;

-- AUTOINCREMENT: a consumed number never comes back for another intent. `kind`: which event `intent` is, 'cancel' or
-- 'drill'.
CREATE TABLE intents (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job_uid INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    intent  BLOB NOT NULL
) STRICT;

CREATE INDEX intents_by_job ON intents (job_uid, seq);

CREATE TABLE leader (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL
) STRICT;

INSERT INTO leader (id, epoch, owner) VALUES (1, 0, '');

-- Nodes that an operator put under maintenance.
CREATE TABLE drained_nodes (
    node   TEXT PRIMARY KEY,
    since  INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Quotas that an operator set; all others have their default. The limits of all persons together have the person ''.
CREATE TABLE quotas (
    project_id TEXT NOT NULL,
    region     TEXT NOT NULL,
    metric     TEXT NOT NULL,
    person     TEXT NOT NULL,
    ceiling    REAL NOT NULL,
    PRIMARY KEY (project_id, region, metric, person)
) STRICT, WITHOUT ROWID;

-- Machines that attempts of jobs have held on a node, written as they are given back (`core.usage.Use`). Rows outlive
-- their jobs. `labels`: a JSON object. `busy_cpus`, `busy_gpus`: how many of its processors and GPUs were at work on
-- average; NULL = no replica left a record of it.
CREATE TABLE uses (
    project_id   TEXT NOT NULL,
    person       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    job          TEXT NOT NULL,
    node         TEXT NOT NULL,
    began        INTEGER NOT NULL,
    ended        INTEGER NOT NULL,
    machine      TEXT NOT NULL,
    accelerator  TEXT NOT NULL,
    machines     INTEGER NOT NULL,
    vcpus        REAL NOT NULL,
    memory_bytes INTEGER NOT NULL,
    accelerators INTEGER NOT NULL,
    busy_cpus    REAL,
    busy_gpus    REAL
) STRICT;

CREATE INDEX uses_by_end ON uses (ended);

-- Who has heard of what budget, so that nobody hears twice: (month, what is heard, by whom). The month is that of
-- the budget, as its first nanosecond.
CREATE TABLE budget_notices (
    month   INTEGER NOT NULL,
    subject TEXT NOT NULL,
    target  TEXT NOT NULL,
    PRIMARY KEY (month, subject, target)
) STRICT, WITHOUT ROWID;

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

-- Operations run, and come to a result. `study_uid`: of the study that an operation belongs to, 0 = to none.
CREATE TABLE operations (
    name       TEXT PRIMARY KEY,
    study_uid  INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    is_running INTEGER NOT NULL CHECK (is_running IN (0, 1)),
    record     BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Holds only what is not done, so that its size does not follow the history.
CREATE INDEX operations_running ON operations (created, name) WHERE is_running = 1;
-- Those that are done as well: they go with their study.
CREATE INDEX operations_of_study ON operations (study_uid, is_running, created, name) WHERE study_uid <> 0;

-- The highest number that a version of a secret ever had: numbers are not used twice, so that a version that a job names
-- never comes to mean another value. The row stays when the secret is deleted.
CREATE TABLE secret_numbers (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    last       INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT, WITHOUT ROWID;

-- `sealed`: the value, encrypted (`access.sealing`); the key is not here. `used`: when a program was last given it, 0 = never.
CREATE TABLE secrets (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    sealed     BLOB NOT NULL,
    PRIMARY KEY (project_id, name, version)
) STRICT;

-- Records that could not be read, taken out of their tables with all their columns: `row` is a JSON object, with BLOBs in
-- base64 below the key "base64". `key`: the columns of the primary key, joined by "/". `at`: when (ns).
CREATE TABLE set_aside (
    id     INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    key    TEXT NOT NULL,
    label  TEXT NOT NULL,
    cause  TEXT NOT NULL,
    at     INTEGER NOT NULL,
    row    BLOB NOT NULL
) STRICT;

CREATE TABLE metadata_stores (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    store_id   TEXT NOT NULL,
    record     BLOB NOT NULL,
    PRIMARY KEY (project_id, location, store_id)
) STRICT, WITHOUT ROWID;

-- Contexts, artifacts and executions. The columns before `record` repeat what lists ask for; times are ns.
CREATE TABLE metadata_nodes (
    node         INTEGER PRIMARY KEY,
    project_id   TEXT NOT NULL,
    location     TEXT NOT NULL,
    store_id     TEXT NOT NULL,
    kind         TEXT NOT NULL,
    node_id      TEXT NOT NULL,
    schema_title TEXT NOT NULL,
    display_name TEXT NOT NULL,
    uri          TEXT NOT NULL,
    state        TEXT NOT NULL,
    created      INTEGER NOT NULL,
    updated      INTEGER NOT NULL,
    record       BLOB NOT NULL,
    UNIQUE (project_id, location, store_id, kind, node_id)
) STRICT;
CREATE INDEX metadata_nodes_by_age ON metadata_nodes (project_id, location, store_id, kind, created);
CREATE INDEX metadata_nodes_by_schema ON metadata_nodes (project_id, location, store_id, kind, schema_title, created);
CREATE INDEX metadata_nodes_by_uri ON metadata_nodes (project_id, location, store_id, uri) WHERE uri <> '';

-- `role`: what the target is to the source (`core.metadata.EdgeRole`). `labels`: a JSON array of pairs.
CREATE TABLE metadata_edges (
    source INTEGER NOT NULL,
    role   TEXT NOT NULL,
    target INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    labels BLOB NOT NULL,
    PRIMARY KEY (source, role, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX metadata_edges_by_target ON metadata_edges (target, role, source);

-- Tensorboards (`parent`: the location), experiments, runs and time series, at one level each. Points are not here.
CREATE TABLE tensorboard_resources (
    parent       TEXT NOT NULL,
    level        TEXT NOT NULL,
    resource_id  TEXT NOT NULL,
    display_name TEXT NOT NULL,
    record       BLOB NOT NULL,
    PRIMARY KEY (parent, level, resource_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tensorboard_resources_by_display_name ON tensorboard_resources (parent, level, display_name);

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

-- Evaluations of versions of models.
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

-- Below which directory of a bucket each job writes, without a slash at its end: what lies there leads to its job.
CREATE TABLE job_outputs (
    project_id TEXT NOT NULL,
    uri        TEXT NOT NULL,
    job_uid    INTEGER NOT NULL,
    PRIMARY KEY (project_id, uri, job_uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_outputs_by_job ON job_outputs (job_uid);

-- What is to be sent to whoever is told of jobs, until it was delivered or is given up.
CREATE TABLE notifications (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    job_uid  INTEGER NOT NULL,
    target   TEXT NOT NULL,
    occasion TEXT NOT NULL,
    created  INTEGER NOT NULL,
    content  TEXT NOT NULL,
    due      INTEGER NOT NULL,
    tries    INTEGER NOT NULL
) STRICT;

CREATE INDEX notifications_by_due ON notifications (due);
CREATE INDEX notifications_by_job ON notifications (job_uid);

-- Who is known here: tokens, grants, projects, service accounts and their keys, each as a JSON document
-- (`access.book`). It is read whole at the start.
CREATE TABLE access (
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- When a token was last shown (ns), which is written seldom and not awaited.
CREATE TABLE token_uses (
    digest TEXT PRIMARY KEY,
    used   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What people changed, in the transaction of the change. Rows are only added, and removed from the oldest end.
-- `hash`: SHA-256 of the row before and of this one's other columns. `project_id`: '' = the whole service.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    project_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    hash       BLOB NOT NULL
) STRICT;

CREATE INDEX audit_of_project ON audit (project_id, seq);
