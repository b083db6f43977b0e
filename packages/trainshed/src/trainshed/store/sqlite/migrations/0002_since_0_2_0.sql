-- Which aliases a version has, its record says alone; what a list of models shows follows from their versions.
UPDATE model_versions SET record = CAST(json_set(CAST(record AS TEXT), '$.aliases', json((
    SELECT json_group_array(own.value) FROM json_each(CAST(record AS TEXT), '$.aliases') AS own
    WHERE EXISTS (
        SELECT 1 FROM model_aliases AS a
        WHERE a.project_id = model_versions.project_id AND a.location = model_versions.location
          AND a.model_id = model_versions.model_id AND a.version = model_versions.version AND a.alias = own.value
    )
))) AS BLOB)
WHERE json_valid(CAST(record AS TEXT));

DROP TABLE model_aliases;
DROP TABLE models;

-- Holds the lists of a project, in the order of their pages.
CREATE INDEX works_of_projects ON works (project_id, api, uid) WHERE parent_uid = 0;

-- Nobody reads when a program was last given a secret; records that cannot be read stay in their tables.
ALTER TABLE secrets DROP COLUMN used;
DROP TABLE set_aside;

-- What is not set is null in a record, and was "" or -1. Within a text of JSON these quotes would be escaped.
UPDATE jobs SET record = (
    WITH RECURSIVE step(number, text) AS (
        SELECT 0, replace(CAST(jobs.record AS TEXT), '"parent":-1', '"parent":null')
        UNION ALL
        SELECT number + 1, replace(text, '"' || field.value || '":""', '"' || field.value || '":null')
        FROM step JOIN json_each('[
            "service_account", "base_output_directory", "job_dir", "runtime_version", "trial", "metric_tag",
            "cause", "replica", "reason", "node", "leaving", "avoid", "began", "at_line", "artifact_uri", "output",
            "model", "stopping"
        ]') AS field ON field.key = number
    )
    SELECT CAST(text AS BLOB) FROM step ORDER BY number DESC LIMIT 1
)
WHERE json_valid(CAST(record AS TEXT));
UPDATE studies SET record = CAST(replace(CAST(record AS TEXT), '"parent":-1', '"parent":null') AS BLOB)
WHERE json_valid(CAST(record AS TEXT));
UPDATE model_versions SET record = CAST(replace(replace(
    CAST(record AS TEXT), '"pipeline":""', '"pipeline":null'), '"job":""', '"job":null'
) AS BLOB)
WHERE json_valid(CAST(record AS TEXT));
UPDATE operations SET record = CAST(replace(replace(replace(
    CAST(record AS TEXT), '"cause":""', '"cause":null'), '"replica":""', '"replica":null'), '"reason":""', '"reason":null'
) AS BLOB)
WHERE json_valid(CAST(record AS TEXT));
