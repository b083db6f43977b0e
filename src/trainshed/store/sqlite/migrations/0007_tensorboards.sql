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
