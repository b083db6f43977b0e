-- The highest number that a version of a secret ever had: numbers are not used twice, so that a version that a job names
-- never comes to mean another value. The row stays when the secret is deleted.
CREATE TABLE secret_numbers (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    last       INTEGER NOT NULL,
    PRIMARY KEY (project_id, name)
) STRICT, WITHOUT ROWID;

-- `sealed`: the value, encrypted (`access.sealing`); the key is not here. `used`: when a program was last given it, 0 = never.
CREATE TABLE secrets (
    project_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    version    INTEGER NOT NULL,
    created    INTEGER NOT NULL,
    used       INTEGER NOT NULL,
    sealed     BLOB NOT NULL,
    PRIMARY KEY (project_id, name, version)
) STRICT;
