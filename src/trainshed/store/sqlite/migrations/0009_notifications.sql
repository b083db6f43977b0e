-- What is to be sent to whoever is told of jobs, until it was delivered or is given up.
CREATE TABLE notifications (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    job_uid  INTEGER NOT NULL,
    target   TEXT NOT NULL,
    occasion TEXT NOT NULL,
    created  INTEGER NOT NULL,
    content  TEXT NOT NULL,
    due      INTEGER NOT NULL,
    tries    INTEGER NOT NULL
) STRICT;

CREATE INDEX notifications_by_due ON notifications (due);
CREATE INDEX notifications_by_job ON notifications (job_uid);
