-- Machines that are reserved for jobs with their name.
CREATE TABLE persistent_resources (
    project_id TEXT NOT NULL,
    location TEXT NOT NULL,
    resource_id TEXT NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (project_id, location, resource_id)
) STRICT, WITHOUT ROWID;
