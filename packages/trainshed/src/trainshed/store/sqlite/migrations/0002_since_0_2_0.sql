-- Only the record of a version contains its aliases. Lists of models are derived from their versions.
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

-- Contains the lists of a project, in the order of pages.
CREATE INDEX works_of_projects ON works (project_id, api, uid) WHERE parent_uid = 0;

-- The last use of secrets is never read. Unreadable records remain in their tables.
ALTER TABLE secrets DROP COLUMN used;
DROP TABLE set_aside;

-- Unset fields of records become null; before, they were "" or -1. Inside JSON strings, these quotes would be escaped.
UPDATE jobs SET record = CAST(
    replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
    replace(replace(replace(replace(replace(replace(replace(replace(replace(
    CAST(record AS TEXT),
    '"parent":-1', '"parent":null'),
    '"service_account":""', '"service_account":null'),
    '"base_output_directory":""', '"base_output_directory":null'),
    '"job_dir":""', '"job_dir":null'),
    '"runtime_version":""', '"runtime_version":null'),
    '"trial":""', '"trial":null'),
    '"metric_tag":""', '"metric_tag":null'),
    '"cause":""', '"cause":null'),
    '"replica":""', '"replica":null'),
    '"reason":""', '"reason":null'),
    '"node":""', '"node":null'),
    '"leaving":""', '"leaving":null'),
    '"avoid":""', '"avoid":null'),
    '"began":""', '"began":null'),
    '"at_line":""', '"at_line":null'),
    '"artifact_uri":""', '"artifact_uri":null'),
    '"output":""', '"output":null'),
    '"model":""', '"model":null'),
    '"stopping":""', '"stopping":null')
AS BLOB)
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
