-- name: insert
INSERT INTO persistent_resources (project_id, location, resource_id, record)
VALUES (:project_id, :location, :resource_id, :record) ON CONFLICT DO NOTHING;

-- name: all
SELECT record FROM persistent_resources;

-- name: replace
UPDATE persistent_resources SET record = :record
WHERE project_id = :project_id AND location = :location AND resource_id = :resource_id;

-- name: delete
DELETE FROM persistent_resources
WHERE project_id = :project_id AND location = :location AND resource_id = :resource_id;
