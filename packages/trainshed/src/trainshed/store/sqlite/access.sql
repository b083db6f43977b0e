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
