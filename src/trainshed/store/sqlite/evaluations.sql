-- name: insert
INSERT INTO model_evaluations (project_id, location, model_id, version, evaluation_id, record)
VALUES (:project_id, :location, :model_id, :version, :evaluation_id, :record);

-- name: evaluation
SELECT record FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id = :evaluation_id;

-- name: evaluations
SELECT record FROM model_evaluations INDEXED BY model_evaluations_by_version
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version
  AND evaluation_id < :below
ORDER BY evaluation_id DESC LIMIT :limit;

-- name: replace
UPDATE model_evaluations SET record = :record
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id = :evaluation_id;

-- name: insert_slice
INSERT INTO model_evaluation_slices (project_id, location, model_id, evaluation_id, slice_id, record)
VALUES (:project_id, :location, :model_id, :evaluation_id, :slice_id, :record);

-- name: slice
SELECT record FROM model_evaluation_slices
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id = :evaluation_id
  AND slice_id = :slice_id;

-- name: slices
SELECT record FROM model_evaluation_slices
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id = :evaluation_id
  AND slice_id > :after
ORDER BY slice_id LIMIT :limit;

-- name: delete_slices_of_version
DELETE FROM model_evaluation_slices
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND evaluation_id IN (
    SELECT evaluation_id FROM model_evaluations
    WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version
);

-- name: delete_of_version
DELETE FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id AND version = :version;

-- name: delete_slices_of_model
DELETE FROM model_evaluation_slices
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;

-- name: delete_of_model
DELETE FROM model_evaluations
WHERE project_id = :project_id AND location = :location AND model_id = :model_id;
