-- name: insert_study
INSERT INTO studies (uid, project_id, location, study_id, display_name, record)
VALUES (:uid, :project_id, :location, :study_id, :display_name, :record);

-- name: begin_numbers
INSERT INTO trial_numbers (study_uid, last) VALUES (:uid, 0);

-- name: taken_by
SELECT uid, study_id, display_name FROM studies WHERE uid = :uid
UNION ALL
SELECT uid, study_id, display_name FROM studies
WHERE project_id = :project_id AND location = :location AND study_id = :study_id
UNION ALL
SELECT uid, study_id, display_name FROM studies
WHERE project_id = :project_id AND location = :location AND display_name = :display_name
UNION ALL
SELECT study_uid, NULL, NULL FROM trial_numbers WHERE study_uid = :uid;

-- name: study
SELECT record FROM studies
WHERE project_id = :project_id AND location = :location AND study_id = :study_id;

-- name: study_by_uid
SELECT record FROM studies WHERE uid = :uid;

-- name: lookup_study
SELECT record FROM studies
WHERE project_id = :project_id AND location = :location AND display_name = :display_name;

-- name: studies
SELECT record FROM studies INDEXED BY studies_by_location
WHERE project_id = :project_id AND location = :location AND uid < :below
ORDER BY uid DESC LIMIT :limit;

-- name: replace_study
UPDATE studies SET record = :record WHERE uid = :uid;
