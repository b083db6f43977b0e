-- Machines that attempts of jobs have held, written as they are given back (`core.usage.Use`). Rows outlive their
-- jobs. `labels`: a JSON object.
CREATE TABLE uses (
    project_id   TEXT NOT NULL,
    person       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    job          TEXT NOT NULL,
    began        INTEGER NOT NULL,
    ended        INTEGER NOT NULL,
    machine      TEXT NOT NULL,
    accelerator  TEXT NOT NULL,
    machines     INTEGER NOT NULL,
    vcpus        REAL NOT NULL,
    memory_bytes INTEGER NOT NULL,
    accelerators INTEGER NOT NULL
) STRICT;
CREATE INDEX uses_by_end ON uses (ended);

-- What a person may use in a project: the limits of all together have the person ''.
CREATE TABLE quotas_of_persons (
    project_id TEXT NOT NULL,
    region     TEXT NOT NULL,
    metric     TEXT NOT NULL,
    person     TEXT NOT NULL,
    ceiling    REAL NOT NULL,
    PRIMARY KEY (project_id, region, metric, person)
) STRICT, WITHOUT ROWID;
INSERT INTO quotas_of_persons SELECT project_id, region, metric, '', ceiling FROM quotas;
DROP TABLE quotas;
ALTER TABLE quotas_of_persons RENAME TO quotas;
