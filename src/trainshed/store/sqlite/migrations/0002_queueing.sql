-- Nodes that an operator put under maintenance.
CREATE TABLE drained_nodes (
    node   TEXT PRIMARY KEY,
    since  INTEGER NOT NULL,
    reason TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Quotas that an operator set; all others have their default.
CREATE TABLE quotas (
    project_id TEXT NOT NULL,
    region     TEXT NOT NULL,
    metric     TEXT NOT NULL,
    ceiling    REAL NOT NULL,
    PRIMARY KEY (project_id, region, metric)
) STRICT, WITHOUT ROWID;

CREATE TABLE drill_plans (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    drills     BLOB NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT, WITHOUT ROWID;

-- Which event `intent` is: 'cancel' (all that there was so far) or 'drill'.
ALTER TABLE intents ADD COLUMN kind TEXT NOT NULL DEFAULT 'cancel';

-- A record says `phase` now, where the attempt stands, in place of `launched`. The new words are no longer than
-- the old ones in a job that is over, so that a long history is rewritten in its place.
UPDATE jobs
SET record = CAST(
    json_set(
        json_remove(CAST(record AS TEXT), '$.launched'),
        '$.phase',
        CASE
            WHEN is_live = 0 THEN 'OVER'
            WHEN json_extract(CAST(record AS TEXT), '$.attempt') = 0 THEN 'WAITING'
            WHEN json_extract(CAST(record AS TEXT), '$.outcome') IS NOT NULL THEN 'STOPPING'
            WHEN NOT json_extract(CAST(record AS TEXT), '$.launched') THEN 'PREPARING'
            WHEN EXISTS (
                SELECT 1 FROM json_each(CAST(jobs.record AS TEXT), '$.replicas') AS replica
                WHERE json_extract(replica.value, '$.state') = 'WAITING'
            ) THEN 'STARTING'
            ELSE 'RUNNING'
        END
    ) AS BLOB
);
