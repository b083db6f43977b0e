-- name: insert
INSERT INTO metadata_nodes (
  project_id, location, store_id, kind, node_id, schema_title, display_name, uri, state, created, updated, record
) VALUES (
  :project_id, :location, :store_id, :kind, :node_id,
  :schema_title, :display_name, :uri, :state, :created, :updated, :record
) ON CONFLICT DO NOTHING;

-- name: get
SELECT record FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id
  AND kind = :kind AND node_id = :node_id;

-- name: list
SELECT record FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id AND kind = :kind ORDER BY created, node;

-- name: replace
UPDATE metadata_nodes SET
  schema_title = :schema_title, display_name = :display_name, uri = :uri, state = :state,
  updated = :updated, record = :record
WHERE project_id = :project_id AND location = :location AND store_id = :store_id
  AND kind = :kind AND node_id = :node_id;

-- name: delete
DELETE FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id
  AND kind = :kind AND node_id = :node_id;

-- name: number
SELECT node FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id
  AND kind = :kind AND node_id = :node_id;

-- name: at_uri
SELECT kind, node_id FROM metadata_nodes
WHERE project_id = :project_id AND location = :location AND store_id = :store_id AND uri = :uri AND uri <> '';

-- name: by_number
SELECT record FROM metadata_nodes WHERE node = :node;

-- name: targets
SELECT t.kind, t.node_id
FROM metadata_nodes AS n JOIN metadata_edges AS e ON e.source = n.node JOIN metadata_nodes AS t ON t.node = e.target
WHERE n.project_id = :project_id AND n.location = :location AND n.store_id = :store_id
  AND n.kind = :kind AND n.node_id = :node_id AND e.role = :role;

-- name: sources
SELECT s.kind, s.node_id
FROM metadata_nodes AS n JOIN metadata_edges AS e ON e.target = n.node JOIN metadata_nodes AS s ON s.node = e.source
WHERE n.project_id = :project_id AND n.location = :location AND n.store_id = :store_id
  AND n.kind = :kind AND n.node_id = :node_id AND e.role = :role;

-- name: delete_edges
DELETE FROM metadata_edges WHERE source = :node OR target = :node;

-- name: insert_edge
INSERT INTO metadata_edges (source, role, target, at, labels)
VALUES (:source, :role, :target, :at, :labels) ON CONFLICT DO NOTHING;

-- name: is_below
WITH RECURSIVE below(node) AS (
  SELECT :ancestor
  UNION
  SELECT e.target FROM below JOIN metadata_edges AS e ON e.source = below.node AND e.role = 'child'
)
SELECT count(*) FROM below WHERE node = :node;

-- name: members
WITH RECURSIVE below(node) AS (
  SELECT :node
  UNION
  SELECT e.target FROM below JOIN metadata_edges AS e ON e.source = below.node AND e.role = 'child'
)
SELECT DISTINCT e.target FROM below JOIN metadata_edges AS e ON e.source = below.node AND e.role = 'member'
ORDER BY e.target LIMIT :limit;

-- name: neighbours
SELECT target FROM metadata_edges WHERE source = :node AND role IN ('input', 'output')
UNION
SELECT source FROM metadata_edges WHERE target = :node AND role IN ('input', 'output')
ORDER BY 1 LIMIT :limit;

-- name: events
SELECT role, target, at, labels FROM metadata_edges
WHERE source = :node AND role IN ('input', 'output') ORDER BY at, target;
