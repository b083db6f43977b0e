-- Records that could not be read, taken out of their tables with all their columns: `row` is a JSON object, with BLOBs in
-- base64 below the key "base64". `key`: the columns of the primary key, joined by "/". `at`: when (ns).
CREATE TABLE set_aside (
    id     INTEGER PRIMARY KEY,
    source TEXT NOT NULL,
    key    TEXT NOT NULL,
    label  TEXT NOT NULL,
    cause  TEXT NOT NULL,
    at     INTEGER NOT NULL,
    row    BLOB NOT NULL
) STRICT;
