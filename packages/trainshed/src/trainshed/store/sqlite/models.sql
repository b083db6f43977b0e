-- name: put
INSERT INTO model_versions (project_id, location, model_id, version, record)
VALUES (:project_id, :location, :model_id, :version, :record)
ON CONFLICT (project_id, location, model_id, version) DO UPDATE SET record = excluded.record;

-- name: version
SELECT record FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: versions
SELECT record FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id
ORDER BY version DESC;

-- name: of_location
SELECT record FROM model_versions WHERE project_id = :project_id AND location = :location;

-- name: delete_model
DELETE FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: delete_version
DELETE FROM model_versions
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;
