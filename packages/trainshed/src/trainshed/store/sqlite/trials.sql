-- name: next_number
UPDATE trial_numbers SET last = last + 1
WHERE study_uid = :study_uid AND study_uid IN (SELECT uid FROM studies)
RETURNING last;

-- name: put_trial
INSERT INTO trials (study_uid, number, generation, record) VALUES (:study_uid, :number, 1, :record)
ON CONFLICT (study_uid, number) DO UPDATE SET generation = generation + 1, record = excluded.record;

-- name: put_measurement
INSERT INTO measurements (study_uid, number, step, elapsed, record)
VALUES (:study_uid, :number, :step, :elapsed, :record)
ON CONFLICT (study_uid, number, step, elapsed) DO UPDATE SET record = excluded.record;

-- name: trial
SELECT record FROM trials WHERE study_uid = :study_uid AND number = :number;

-- name: trials
SELECT record FROM trials
WHERE study_uid = :study_uid AND number > :after
ORDER BY number LIMIT :limit;

-- name: history
SELECT record FROM trials WHERE study_uid = :study_uid ORDER BY number;

-- name: measurements
SELECT number, record FROM measurements
WHERE study_uid = :study_uid
ORDER BY number, step, elapsed;

-- name: measurements_of
SELECT number, record FROM measurements
WHERE study_uid = :study_uid AND number = :number
ORDER BY step, elapsed;

-- name: delete_trial
DELETE FROM trials WHERE study_uid = :study_uid AND number = :number;

-- name: delete_measurements
DELETE FROM measurements WHERE study_uid = :study_uid AND number = :number;
