-- name: put
INSERT INTO pipeline_schedules (project_id, location, schedule_id, next_run, record)
VALUES (:project_id, :location, :schedule_id, :next_run, :record)
ON CONFLICT (project_id, location, schedule_id) DO UPDATE SET next_run = excluded.next_run, record = excluded.record;

-- name: put_spec
INSERT OR REPLACE INTO pipeline_specs (run_uid, spec) VALUES (:run, :spec);

-- name: get
SELECT record FROM pipeline_schedules
WHERE project_id = :project_id AND location = :location AND schedule_id = :schedule_id;

-- name: list
SELECT record FROM pipeline_schedules
WHERE project_id = :project_id AND location = :location ORDER BY CAST(schedule_id AS INTEGER) DESC;

-- name: delete
DELETE FROM pipeline_schedules
WHERE project_id = :project_id AND location = :location AND schedule_id = :schedule_id;

-- name: delete_spec
DELETE FROM pipeline_specs WHERE run_uid = :run;

-- name: due
SELECT record FROM pipeline_schedules WHERE next_run <= :now ORDER BY next_run;

-- name: next
SELECT min(next_run) FROM pipeline_schedules WHERE next_run > :now;

-- name: live
SELECT uid FROM jobs WHERE uid IN (SELECT value FROM json_each(:uids)) AND is_live = 1;
