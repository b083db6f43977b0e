-- name: insert
INSERT INTO metadata_stores (project_id, location, store_id, record)
VALUES (:project_id, :location, :store_id, :record) ON CONFLICT DO NOTHING;

-- name: get
SELECT record FROM metadata_stores
WHERE project_id = :project_id AND location = :location AND store_id = :store_id;

-- name: list
SELECT record FROM metadata_stores WHERE project_id = :project_id AND location = :location ORDER BY store_id;

-- name: delete
DELETE FROM metadata_stores
WHERE project_id = :project_id AND location = :location AND store_id = :store_id;

-- name: delete_edges
DELETE FROM metadata_edges WHERE source IN (
  SELECT node FROM metadata_nodes
  WHERE project_id = :project_id AND location = :location AND store_id = :store_id
);

-- name: delete_nodes
DELETE FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id;
