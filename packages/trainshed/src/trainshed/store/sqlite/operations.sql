-- name: insert_operation
INSERT INTO operations (name, study_uid, created, is_running, record)
VALUES (:name, :study_uid, :created, :is_running, :record)
ON CONFLICT DO NOTHING;

-- name: finish_operation
UPDATE operations SET is_running = 0, record = :record WHERE name = :name AND is_running = 1;

-- name: running_operations
SELECT record FROM operations INDEXED BY operations_running WHERE is_running = 1 ORDER BY created, name;

-- name: running_operations_of_study
SELECT record FROM operations INDEXED BY operations_of_study
WHERE study_uid = :study_uid AND study_uid <> 0 AND is_running = 1
ORDER BY created, name;

-- name: orphan_operation
UPDATE operations SET study_uid = 0 WHERE name = :name;

-- name: delete_operation
DELETE FROM operations WHERE name = :name AND is_running = 0;

-- name: operation
SELECT record FROM operations WHERE name = :name;

-- name: is_there
SELECT 1 FROM operations WHERE name = :name;
