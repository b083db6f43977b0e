-- name: insert
INSERT INTO notifications (job_uid, target, occasion, created, content, due, tries)
VALUES (:job_uid, :target, :occasion, :created, :content, :created, 0);

-- name: waiting
SELECT id, job_uid, target, occasion, created, content, due, tries FROM (
    SELECT *, row_number() OVER (PARTITION BY target ORDER BY due, id) AS turn FROM notifications
) WHERE turn <= :limit ORDER BY due, id;

-- name: count
SELECT count(*), coalesce(sum(tries > 0), 0) FROM notifications;

-- name: put_off
UPDATE notifications SET due = :due, tries = tries + 1 WHERE id = :id;

-- name: remove
DELETE FROM notifications WHERE id = :id;

-- name: note_budget
INSERT OR IGNORE INTO budget_notices (month, subject, target) VALUES (:month, :subject, :target);

-- name: forget_budgets
DELETE FROM budget_notices WHERE month < :month;
