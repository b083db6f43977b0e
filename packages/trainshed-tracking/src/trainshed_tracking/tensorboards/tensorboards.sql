-- name: insert
INSERT INTO tensorboard_resources (parent, level, resource_id, display_name, record)
VALUES (:parent, :level, :resource_id, :display_name, :record) ON CONFLICT DO NOTHING;

-- name: get
SELECT record FROM tensorboard_resources
WHERE parent = :parent AND level = :level AND resource_id = :resource_id;

-- name: called
SELECT record FROM tensorboard_resources
WHERE parent = :parent AND level = :level AND display_name = :display_name;

-- name: list
SELECT record FROM tensorboard_resources WHERE parent = :parent AND level = :level ORDER BY resource_id;

-- name: replace
UPDATE tensorboard_resources SET display_name = :display_name, record = :record
WHERE parent = :parent AND level = :level AND resource_id = :resource_id;

-- name: delete
DELETE FROM tensorboard_resources
WHERE parent = :parent AND level = :level AND resource_id = :resource_id;

-- name: all_below
SELECT record FROM tensorboard_resources
WHERE parent = :name OR (parent > :name || '/' AND parent < :name || '0');

-- name: delete_below
DELETE FROM tensorboard_resources
WHERE parent = :name OR (parent > :name || '/' AND parent < :name || '0');
