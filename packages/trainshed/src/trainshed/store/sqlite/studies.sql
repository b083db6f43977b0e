-- name: insert
INSERT INTO studies (uid, project_id, location, study_id, display_name, record)
VALUES (:uid, :project_id, :location, :study_id, :display_name, :record) ON CONFLICT DO NOTHING;

-- name: begin_numbers
INSERT INTO trial_numbers (study_uid, last) VALUES (:uid, 0);

-- name: get
SELECT record FROM studies
WHERE project_id = :project_id AND location = :location AND study_id = :study_id;

-- name: study_by_uid
SELECT record FROM studies WHERE uid = :uid;

-- name: called
SELECT record FROM studies
WHERE project_id = :project_id AND location = :location AND display_name = :display_name;

-- name: list
SELECT record FROM studies INDEXED BY studies_by_location
WHERE project_id = :project_id AND location = :location
ORDER BY uid DESC;

-- name: replace
UPDATE studies SET record = :record
WHERE project_id = :project_id AND location = :location AND study_id = :study_id;

-- name: delete
DELETE FROM studies WHERE uid = :uid;

-- name: delete_numbers
DELETE FROM trial_numbers WHERE study_uid = :uid;

-- name: delete_trials
DELETE FROM trials WHERE study_uid = :uid;

-- name: delete_measurements
DELETE FROM measurements WHERE study_uid = :uid;

-- name: delete_operations
DELETE FROM operations WHERE study_uid = :uid AND study_uid <> 0;
