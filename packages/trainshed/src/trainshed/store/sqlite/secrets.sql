-- name: next_number
INSERT INTO secret_numbers (project_id, name, last) VALUES (:project_id, :name, 1)
ON CONFLICT (project_id, name) DO UPDATE SET last = last + 1
RETURNING last;

-- name: insert_version
INSERT INTO secrets (project_id, name, version, created, sealed)
VALUES (:project_id, :name, :version, :created, :sealed);

-- name: versions
SELECT name, version, created FROM secrets
WHERE project_id = :project_id
ORDER BY name, version DESC;

-- name: newest
SELECT version, sealed FROM secrets
WHERE project_id = :project_id AND name = :name
ORDER BY version DESC LIMIT 1;

-- name: numbered
SELECT version, sealed FROM secrets
WHERE project_id = :project_id AND name = :name AND version = :version;

-- name: any
SELECT EXISTS (SELECT 1 FROM secrets);

-- name: delete_secret
DELETE FROM secrets
WHERE project_id = :project_id AND name = :name;

-- name: delete_version
DELETE FROM secrets
WHERE project_id = :project_id AND name = :name AND version = :version;
