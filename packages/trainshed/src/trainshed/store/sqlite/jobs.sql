-- name: job_by_name
SELECT jobs.uid, jobs.state, jobs.is_live, jobs.generation, jobs.labels_version, works.display_name
FROM jobs JOIN works ON works.uid = jobs.uid
WHERE jobs.uid = coalesce(
    (SELECT uid FROM jobs
     WHERE uid = :numbered AND api = :api AND project_id = :project_id AND location = :location AND job_id = :job_id),
    (SELECT uid FROM job_names
     WHERE api = :api AND project_id = :project_id AND location = :location AND job_id = :job_id))
  AND :kind IN ('', works.kind);

-- name: is_there
SELECT 1 FROM jobs WHERE uid = :uid;

-- name: append_cancel
INSERT INTO intents (job_uid, kind, intent)
SELECT :uid, 'cancel', :intent
WHERE NOT EXISTS (SELECT 1 FROM intents WHERE job_uid = :uid AND kind = 'cancel');

-- name: append_drill
INSERT INTO intents (job_uid, kind, intent) VALUES (:uid, 'drill', :intent);

-- name: replace_labels
UPDATE jobs
SET labels = :labels, labels_version = labels_version + 1, labels_updated = max(labels_updated, :now)
WHERE uid = :uid
RETURNING record, labels, labels_updated, (SELECT kind FROM works WHERE works.uid = jobs.uid);

-- name: delete_labels
DELETE FROM work_labels WHERE uid = :uid;

-- name: live_parent
SELECT parent.record, parent.labels, parent.labels_updated, kinds.kind
FROM works
JOIN jobs AS parent ON parent.uid = works.parent_uid AND parent.is_live = 1
JOIN works AS kinds ON kinds.uid = parent.uid
WHERE works.uid = :uid;

-- name: delete_job
DELETE FROM jobs WHERE uid = :uid AND is_live = 0;

-- name: delete_work
DELETE FROM works WHERE uid = :uid;

-- name: orphan_children
UPDATE works SET parent_uid = -1 WHERE parent_uid = :uid AND parent_uid <> 0;

-- name: delete_timeline
DELETE FROM timeline WHERE job_uid = :uid;

-- name: delete_intents
DELETE FROM intents WHERE job_uid = :uid;

-- name: delete_trials
DELETE FROM trials WHERE study_uid = :uid;

-- name: delete_measurements
DELETE FROM measurements WHERE study_uid = :uid;

-- name: delete_curve_files
DELETE FROM curve_files WHERE job_uid = :uid;

-- name: delete_curve_series
DELETE FROM curve_series WHERE job_uid = :uid;

-- name: delete_outputs
DELETE FROM job_outputs WHERE job_uid = :uid;

-- name: delete_curve_job
DELETE FROM curve_jobs WHERE job_uid = :uid;

-- name: drain_node
INSERT INTO drained_nodes (node, since, reason) VALUES (:node, :since, :reason)
ON CONFLICT (node) DO UPDATE SET reason = excluded.reason WHERE excluded.reason <> '';

-- name: undrain_node
DELETE FROM drained_nodes WHERE node = :node;

-- name: set_quota
INSERT INTO quotas (project_id, region, metric, person, ceiling, most)
VALUES (:project_id, :region, :metric, :person, :limit, :most)
ON CONFLICT (project_id, region, metric, person)
DO UPDATE SET ceiling = excluded.ceiling, most = coalesce(excluded.most, most);

-- name: quota_of_service
SELECT person, most FROM quotas
WHERE project_id = :project_id AND region = :region AND metric = :metric
  AND person IN (:person, :each) AND most IS NOT NULL
ORDER BY person = :person DESC LIMIT 1;

-- name: clear_quota
DELETE FROM quotas
WHERE project_id = :project_id AND region = :region AND metric = :metric AND person = :person;

-- name: put_use
INSERT INTO uses (project_id, person, labels, job, node, began, ended, machine, accelerator,
                  machines, vcpus, memory_bytes, accelerators, busy_cpus, busy_gpus)
VALUES (:project_id, :person, :labels, :job, :node, :began, :ended, :machine, :accelerator,
        :machines, :vcpus, :memory_bytes, :accelerators, :busy_cpus, :busy_gpus);

-- name: forget_use
DELETE FROM uses WHERE rowid = (SELECT min(rowid) FROM uses) AND ended < :before;

-- name: acquire
UPDATE leader SET epoch = epoch + 1, owner = :owner WHERE id = 1 RETURNING epoch;

-- name: is_leader
SELECT 1 FROM leader WHERE id = 1 AND epoch = :epoch;

-- name: commit_job
-- The WHERE clause contains the whole guard: generation, leader, no change of a final state, no unread intent.
UPDATE jobs
SET state = :state, is_live = :is_live, generation = generation + 1, record = :record
WHERE uid = :uid
  AND generation = :expected_generation
  AND (is_live = 1 OR state = :state)
  AND EXISTS (SELECT 1 FROM leader WHERE id = 1 AND epoch = :epoch)
  AND (:is_live = 1 OR NOT EXISTS (SELECT 1 FROM intents WHERE job_uid = :uid AND seq > :consumed))
RETURNING generation;

-- name: move_work
UPDATE works SET state = :state WHERE uid = :uid AND state <> :state;

-- name: consume_intents
DELETE FROM intents WHERE job_uid = :uid AND seq <= :consumed;

-- name: load_job
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation
FROM jobs JOIN works ON works.uid = jobs.uid
WHERE jobs.uid = :uid AND jobs.is_live = 1;

-- name: load_intents
SELECT seq, kind, intent FROM intents WHERE job_uid = :uid ORDER BY seq;

-- name: load_live
SELECT jobs.uid, jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation
FROM jobs INDEXED BY jobs_live CROSS JOIN works ON works.uid = jobs.uid
WHERE jobs.is_live = 1
ORDER BY jobs.uid;

-- name: load_all_intents
SELECT job_uid, seq, kind, intent FROM intents ORDER BY seq;
