-- name: last_hash
SELECT hash FROM audit ORDER BY seq DESC LIMIT 1;

-- name: add
INSERT INTO audit (at, project_id, content, hash) VALUES (:at, :project_id, :content, :hash);

-- name: forget
-- Two entries are removed for each new entry, so that the log shrinks to its limit.
DELETE FROM audit WHERE seq <= (SELECT min(seq) FROM audit) + 1 AND at < :before;

-- name: page
SELECT seq, at, project_id, content, hash,
       (SELECT hash FROM audit AS earlier WHERE earlier.seq < audit.seq ORDER BY seq DESC LIMIT 1)
FROM audit WHERE seq < :before AND (:project_id IS NULL OR project_id = :project_id)
ORDER BY seq DESC LIMIT :limit;
