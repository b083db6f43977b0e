-- name: insert
INSERT INTO datasets (project_id, location, dataset_id, made, record)
VALUES (:project_id, :location, :dataset_id, :made, :record) ON CONFLICT DO NOTHING;

-- name: get
SELECT record FROM datasets
WHERE project_id = :project_id AND location = :location AND dataset_id = :dataset_id;

-- name: list
SELECT record FROM datasets
WHERE project_id = :project_id AND location = :location
ORDER BY made DESC, dataset_id DESC;

-- name: replace
UPDATE datasets SET record = :record
WHERE project_id = :project_id AND location = :location AND dataset_id = :dataset_id;

-- name: delete
DELETE FROM datasets
WHERE project_id = :project_id AND location = :location AND dataset_id = :dataset_id;
