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

-- `role`: what the target is to the source (`core.metadata.records.EdgeRole`). `labels`: a JSON array of pairs.
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
