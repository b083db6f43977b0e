-- name: reserve_name
INSERT INTO job_names (api, project_id, location, job_id, uid)
VALUES (:api, :project_id, :location, :job_id, :uid)
ON CONFLICT DO NOTHING;

-- name: insert_job
INSERT INTO jobs (uid, api, project_id, location, job_id, state, is_live, created,
                  generation, labels_version, labels_updated, labels, record)
VALUES (:uid, :api, :project_id, :location, :job_id, :state, :is_live, :created,
        1, 0, 0, :labels, :record)
ON CONFLICT DO NOTHING;

-- name: has_name
SELECT 1 FROM jobs
WHERE uid = :numbered AND api = :api AND project_id = :project_id AND location = :location AND job_id = :job_id;

-- name: insert_work
INSERT INTO works (uid, project_id, api, location, kind, parent_uid, state, display_name, created)
VALUES (:uid, :project_id, :api, :location, :kind, :parent_uid, :state, :display_name, :created);

-- name: insert_label
INSERT INTO work_labels (uid, key, value) VALUES (:uid, :key, :value)
ON CONFLICT (uid, key) DO UPDATE SET value = excluded.value;

-- name: insert_output
INSERT INTO job_outputs (project_id, uri, job_uid) VALUES (:project_id, :uri, :uid);

-- name: append_timeline
INSERT INTO timeline (job_uid, seq, at, kind, message, details)
VALUES (:uid, (SELECT coalesce(max(seq), 0) + 1 FROM timeline WHERE job_uid = :uid),
        :at, :kind, :message, :details);
