-- name: acquire
UPDATE leader SET epoch = epoch + 1, owner = :owner WHERE id = 1 RETURNING epoch;

-- name: commit_job
-- The whole guard stands in the WHERE: predecessor, lease, no way out of a final state, no intent left behind.
UPDATE jobs
SET state = :state, is_live = :is_live, generation = generation + 1, record = :record
WHERE uid = :uid
  AND generation = :expected_generation
  AND (is_live = 1 OR state = :state)
  AND EXISTS (SELECT 1 FROM leader WHERE id = 1 AND epoch = :epoch)
  AND (:is_live = 1 OR NOT EXISTS (SELECT 1 FROM intents WHERE job_uid = :uid AND seq > :consumed))
RETURNING generation;

-- name: consume_intents
DELETE FROM intents WHERE job_uid = :uid AND seq <= :consumed;

-- name: why_stale
SELECT (SELECT epoch FROM leader WHERE id = 1),
       (SELECT generation FROM jobs WHERE uid = :uid),
       (SELECT state FROM jobs WHERE uid = :uid),
       (SELECT is_live FROM jobs WHERE uid = :uid);

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
