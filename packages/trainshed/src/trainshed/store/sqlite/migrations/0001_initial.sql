-- The database of release 0.2.0.

-- The names of all jobs, including deleted ones. Rows are never removed, so that names are not reused.
CREATE TABLE job_names (
    api        TEXT NOT NULL,
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    uid        INTEGER NOT NULL,
    PRIMARY KEY (api, project_id, location, job_id)
) STRICT, WITHOUT ROWID;

-- IDs that a client chose. By default, the ID of a Vertex job is its uid.
CREATE INDEX job_names_chosen ON job_names (job_id, uid) WHERE job_id <> CAST(uid AS TEXT);

-- Commits of the controller write `record`, requests write `labels`. Neither overwrites the other.
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

-- Contains only unfinished jobs, so that its size does not depend on the history.
CREATE INDEX jobs_live ON jobs (uid) WHERE is_live = 1;

-- The kind of each record in `jobs` ('job', 'tuning' or 'pipeline'), and the columns by which lists are sorted and filtered.
-- They are separate from the wide rows of `jobs`, so that a new column or index does not make SQLite read all records.
-- `parent_uid`: the work that created this one, 0 = a client, -1 = a deleted work.
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

-- One index contains the lists of works of clients, the other one those of other works. A list of several locations or kinds
-- is merged from its parts. Both indexes end with the order of pages.
CREATE INDEX works_of_clients ON works (project_id, api, location, kind, uid) WHERE parent_uid = 0;
CREATE INDEX works_of_works ON works (project_id, api, location, kind, uid) WHERE parent_uid <> 0;
CREATE INDEX works_by_client ON works (uid) WHERE parent_uid = 0;
CREATE INDEX works_by_parent ON works (parent_uid, uid) WHERE parent_uid <> 0;
CREATE INDEX works_by_state ON works (state, project_id);
CREATE INDEX works_by_display_name ON works (display_name);
-- A uid starts with the millisecond of its creation (41 bits). Only works with another creation time need an index.
CREATE INDEX works_of_another_time ON works (created) WHERE abs((uid >> 22) - created / 1000000) > 1000;

-- For the number of jobs by state in lists.
CREATE INDEX works_of_clients_by_state ON works (state, project_id) WHERE parent_uid = 0;

-- Labels of works, one row for each label.
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

-- AUTOINCREMENT: the number of a consumed intent is never reused. `kind`: 'cancel' or 'drill'.
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

-- Nodes in maintenance.
CREATE TABLE drained_nodes (
    node   TEXT PRIMARY KEY,
    since  INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Quotas that an operator set; other quotas have their default. The limits of all users together have the person ''.
CREATE TABLE quotas (
    project_id TEXT NOT NULL,
    region     TEXT NOT NULL,
    metric     TEXT NOT NULL,
    person     TEXT NOT NULL,
    ceiling    REAL NOT NULL,
    PRIMARY KEY (project_id, region, metric, person)
) STRICT, WITHOUT ROWID;

-- Machines that attempts have used on a node, written at their release (`core.usage.Use`). Rows outlive their jobs.
-- `labels`: a JSON object. `busy_cpus`, `busy_gpus`: average number of busy processors and GPUs; NULL = not recorded.
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

-- Sent notifications about budgets, so that no recipient gets one twice: (month, notification, recipient). The month of the
-- budget is stored as its first nanosecond.
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

-- The highest number of a trial of each client's study, including deleted trials, so that numbers are not reused.
CREATE TABLE trial_numbers (
    study_uid INTEGER PRIMARY KEY,
    last      INTEGER NOT NULL
) STRICT;

-- Trials of clients' studies and of tuning jobs, whose uid is also their study's. Rows are sorted by study and number, so
-- that reading a study's history is sequential.
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

-- A deleted model keeps its row with is_there = 0, because a page of a list may end with it. `made`: its first version.
CREATE TABLE models (
    project_id TEXT NOT NULL,
    location   TEXT NOT NULL,
    model_id   TEXT NOT NULL,
    made       INTEGER NOT NULL,
    is_there   INTEGER NOT NULL CHECK (is_there IN (0, 1)),
    PRIMARY KEY (project_id, location, model_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX models_by_age ON models (project_id, location, made, model_id) WHERE is_there = 1;

-- The current aliases of a version are in `model_aliases`, because another version may have taken those of its record.
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

-- Long-running operations and their results. `study_uid`: the operation's study, 0 = none.
CREATE TABLE operations (
    name       TEXT PRIMARY KEY,
    study_uid  INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    is_running INTEGER NOT NULL CHECK (is_running IN (0, 1)),
    record     BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Contains only unfinished operations, so that its size does not depend on the history.
CREATE INDEX operations_running ON operations (created, name) WHERE is_running = 1;
-- Includes finished operations, which are deleted together with their study.
CREATE INDEX operations_of_study ON operations (study_uid, is_running, created, name) WHERE study_uid <> 0;

-- The highest version number of each secret. Numbers are not reused, so that the version in a job never refers to another
-- value. The row remains after the deletion of the secret.
CREATE TABLE secret_numbers (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    last       INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT, WITHOUT ROWID;

-- `sealed`: the encrypted value (`access.sealing`). The key is stored elsewhere. `used`: time of the last use, 0 = never.
CREATE TABLE secrets (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    sealed     BLOB NOT NULL,
    PRIMARY KEY (project_id, name, version)
) STRICT;

-- Unreadable records, moved from their tables with all columns. `row`: a JSON object, with BLOBs in base64 below the key
-- "base64". `key`: the columns of the primary key, joined by "/". `at`: time of the move (ns).
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

-- Contexts, artifacts and executions. The columns before `record` repeat fields that lists filter by. Times are in ns.
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

-- `role`: the role of the target for the source (`core.metadata.EdgeRole`). `labels`: a JSON array of pairs.
CREATE TABLE metadata_edges (
    source INTEGER NOT NULL,
    role   TEXT NOT NULL,
    target INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    labels BLOB NOT NULL,
    PRIMARY KEY (source, role, target)
) STRICT, WITHOUT ROWID;
CREATE INDEX metadata_edges_by_target ON metadata_edges (target, role, source);

-- Tensorboards (`parent`: the location), experiments, runs and time series, one level each. Points are stored elsewhere.
CREATE TABLE tensorboard_resources (
    parent       TEXT NOT NULL,
    level        TEXT NOT NULL,
    resource_id  TEXT NOT NULL,
    display_name TEXT NOT NULL,
    record       BLOB NOT NULL,
    PRIMARY KEY (parent, level, resource_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tensorboard_resources_by_display_name ON tensorboard_resources (parent, level, display_name);

-- Curves of jobs: the position up to which each event file was read, and its series. Points are stored elsewhere.
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
-- Jobs whose event files may not be read completely yet.
CREATE TABLE curve_jobs (
    job_uid INTEGER PRIMARY KEY
) STRICT;
-- Datasets: names and kinds of files, without their contents. `made`: creation time in ns.
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

-- The output directory of each job in a bucket, without a final slash. It identifies the job of an object.
CREATE TABLE job_outputs (
    project_id TEXT NOT NULL,
    uri        TEXT NOT NULL,
    job_uid    INTEGER NOT NULL,
    PRIMARY KEY (project_id, uri, job_uid)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_outputs_by_job ON job_outputs (job_uid);

-- Pending notifications about jobs, until they are delivered or expire.
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

-- Tokens, grants, projects, service accounts and their keys, each as a JSON document (`access.book`). The service reads the
-- whole table at its start.
CREATE TABLE access (
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- The last use of each token (ns). It is written rarely, and no request waits for it.
CREATE TABLE token_uses (
    digest TEXT PRIMARY KEY,
    used   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The audit log: changes by users, written in the transaction of the change. Only the oldest rows are removed. `hash`: SHA-256
-- of the previous row and this row's other columns. `project_id`: '' = the whole service.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    project_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    hash       BLOB NOT NULL
) STRICT;

CREATE INDEX audit_of_project ON audit (project_id, seq);
