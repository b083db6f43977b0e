-- name: hide_study
DELETE FROM studies WHERE uid = :uid;

-- name: hidden_studies
-- A study whose record was set aside is not deleted.
SELECT study_uid FROM trial_numbers
WHERE study_uid NOT IN (SELECT uid FROM studies)
  AND study_uid NOT IN (SELECT CAST(key AS INTEGER) FROM set_aside WHERE source = 'studies')
ORDER BY study_uid;

-- name: delete_trials
DELETE FROM trials
WHERE study_uid = :uid
  AND number IN (SELECT number FROM trials WHERE study_uid = :uid ORDER BY number LIMIT :most);

-- name: delete_measurements
DELETE FROM measurements
WHERE (study_uid, number, step, elapsed) IN (
    SELECT study_uid, number, step, elapsed FROM measurements WHERE study_uid = :uid
    ORDER BY number, step, elapsed LIMIT :most
);

-- name: delete_operations
DELETE FROM operations
WHERE name IN (
    SELECT name FROM operations INDEXED BY operations_of_study
    WHERE study_uid = :uid AND study_uid <> 0 LIMIT :most
);

-- name: delete_numbers
DELETE FROM trial_numbers WHERE study_uid = :uid;
