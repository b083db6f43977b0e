-- What lists are narrowed by, beside the wide records: the works' states and names, and their labels one by one.
ALTER TABLE works ADD COLUMN state TEXT NOT NULL DEFAULT '';
ALTER TABLE works ADD COLUMN display_name TEXT NOT NULL DEFAULT '';
ALTER TABLE works ADD COLUMN created INTEGER NOT NULL DEFAULT 0;

-- A record that cannot be read keeps no name: whoever reads it sets it aside.
UPDATE works
SET (state, display_name, created) = (
    SELECT jobs.state,
           CASE WHEN json_valid(CAST(jobs.record AS TEXT))
                THEN coalesce(json_extract(CAST(jobs.record AS TEXT), '$.display_name'), '')
                ELSE '' END,
           jobs.created
    FROM jobs WHERE jobs.uid = works.uid
)
WHERE EXISTS (SELECT 1 FROM jobs WHERE jobs.uid = works.uid);

CREATE INDEX works_by_state ON works (state, project_id);
CREATE INDEX works_by_display_name ON works (display_name);
CREATE INDEX works_by_creation ON works (created);

CREATE TABLE work_labels (
    uid   INTEGER NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (uid, key)
) STRICT, WITHOUT ROWID;

INSERT OR IGNORE INTO work_labels (uid, key, value)
SELECT jobs.uid, json_extract(label.value, '$[0]'), json_extract(label.value, '$[1]')
FROM jobs,
     json_each(CASE WHEN json_valid(CAST(jobs.labels AS TEXT)) THEN CAST(jobs.labels AS TEXT) ELSE '[]' END) AS label
WHERE label.type = 'array' AND json_type(label.value, '$[0]') = 'text' AND json_type(label.value, '$[1]') = 'text';

CREATE INDEX work_labels_by_value ON work_labels (key, value);
