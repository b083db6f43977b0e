-- name: all
SELECT kind, key, content FROM access;

-- name: put
INSERT INTO access (kind, key, content) VALUES (?, ?, ?)
ON CONFLICT (kind, key) DO UPDATE SET content = excluded.content;

-- name: remove
DELETE FROM access WHERE kind = ? AND key = ?;

-- name: note_use
INSERT INTO token_uses (digest, used) VALUES (?, ?)
ON CONFLICT (digest) DO UPDATE SET used = max(used, excluded.used);

-- name: uses
SELECT digest, used FROM token_uses;

-- name: forget_uses
DELETE FROM token_uses WHERE digest = ?;

-- name: last_hash
SELECT hash FROM audit ORDER BY seq DESC LIMIT 1;

-- name: add_audit
INSERT INTO audit (at, project_id, content, hash) VALUES (:at, :project_id, :content, :hash);

-- name: forget_audit
-- Two for each new one: the record gets shorter.
DELETE FROM audit WHERE seq <= (SELECT min(seq) FROM audit) + 1 AND at < :before;

-- name: audit_page
SELECT seq, at, project_id, content, hash,
       (SELECT hash FROM audit AS earlier WHERE earlier.seq < audit.seq ORDER BY seq DESC LIMIT 1)
FROM audit WHERE seq < :before AND (:project_id IS NULL OR project_id = :project_id)
ORDER BY seq DESC LIMIT :limit;
