-- name: newest_version
SELECT max(version) FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: make_model
INSERT INTO models (project_id, location, model_id, made, is_there)
VALUES (:project_id, :location, :model_id, :made, 1)
ON CONFLICT (project_id, location, model_id) DO UPDATE SET made = excluded.made, is_there = 1;

-- name: insert_version
INSERT INTO model_versions (project_id, location, model_id, version, record)
VALUES (:project_id, :location, :model_id, :version, :record);

-- name: replace_version
UPDATE model_versions SET record = :record
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: take_alias
INSERT INTO model_aliases (project_id, location, model_id, alias, version)
VALUES (:project_id, :location, :model_id, :alias, :version)
ON CONFLICT (project_id, location, model_id, alias) DO UPDATE SET version = excluded.version;

-- name: drop_aliases
DELETE FROM model_aliases
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: version_of_alias
SELECT version FROM model_aliases
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND alias = :alias;

-- name: version
SELECT record, (
    SELECT json_group_array(alias) FROM model_aliases
    WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version
)
FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: versions
SELECT v.record, (
    SELECT json_group_array(a.alias) FROM model_aliases AS a
    WHERE a.project_id = :project_id AND a.location = :location AND a.model_id = :model_id AND a.version = v.version
)
FROM model_versions AS v
WHERE v.project_id = :project_id AND v.location = :location AND v.model_id = :model_id
ORDER BY v.version DESC;

-- name: models
SELECT m.model_id, d.version
FROM models AS m INDEXED BY models_by_age CROSS JOIN model_aliases AS d
  ON d.project_id = m.project_id AND d.location = m.location AND d.model_id = m.model_id AND d.alias = 'default'
-- Leaves out versions whose records were set aside.
CROSS JOIN model_versions AS v
  ON v.project_id = m.project_id AND v.location = m.location AND v.model_id = m.model_id AND v.version = d.version
WHERE m.project_id = :project_id AND m.location = :location AND m.is_there = 1
ORDER BY m.made DESC, m.model_id DESC;

-- name: unmake_model
UPDATE models SET is_there = 0
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: delete_versions
DELETE FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: delete_aliases
DELETE FROM model_aliases
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: delete_version
DELETE FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;
