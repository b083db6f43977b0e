-- name: insert
INSERT INTO model_evaluations (project_id, location, model_id, version, evaluation_id, record)
VALUES (:project_id, :location, :model_id, :version, :evaluation_id, :record)
ON CONFLICT DO NOTHING;

-- name: get
SELECT record FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id = :evaluation_id;

-- name: list
SELECT record FROM model_evaluations INDEXED BY model_evaluations_by_version
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version
ORDER BY evaluation_id DESC;

-- name: delete_of_version
DELETE FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: delete_of_model
DELETE FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;
