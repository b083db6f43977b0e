-- Who is known here: tokens, grants, projects, service accounts and their keys, each as a JSON document
-- (`access.book`). It is read whole at the start.
CREATE TABLE access (
    kind    TEXT NOT NULL,
    key     TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

-- When a token was last shown (ns), which is written seldom and not awaited.
CREATE TABLE token_uses (
    digest TEXT PRIMARY KEY,
    used   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What people changed, in the transaction of the change. Rows are only added, and removed from the oldest end.
-- `hash`: SHA-256 of the row before and of this one's other columns. `project_id`: '' = the whole service.
CREATE TABLE audit (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    project_id TEXT NOT NULL,
    content    BLOB NOT NULL,
    hash       BLOB NOT NULL
) STRICT;
CREATE INDEX audit_of_project ON audit (project_id, seq);
