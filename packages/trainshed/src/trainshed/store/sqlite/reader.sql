-- name: job
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation, jobs.labels_version
FROM jobs JOIN works ON works.uid = jobs.uid
WHERE jobs.uid = coalesce(
    (SELECT uid FROM jobs
     WHERE uid = :numbered AND api = :api AND project_id = :project_id AND location = :location AND job_id = :job_id),
    (SELECT uid FROM job_names
     WHERE api = :api AND project_id = :project_id AND location = :location AND job_id = :job_id))
  AND :kind IN ('', works.kind);

-- name: job_by_uid
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation, jobs.labels_version
FROM jobs JOIN works ON works.uid = jobs.uid
WHERE jobs.uid = :uid
  AND (:projects = '[]' OR jobs.project_id IN (SELECT value FROM json_each(:projects)));

-- name: jobs_by_uids
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation, jobs.labels_version
FROM json_each(:uids) AS wanted CROSS JOIN jobs ON jobs.uid = wanted.value CROSS JOIN works ON works.uid = jobs.uid;

-- name: find
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation, jobs.labels_version
FROM (
    SELECT uid FROM job_names INDEXED BY job_names_chosen
    WHERE job_id = :job_id AND job_id <> CAST(uid AS TEXT)
    UNION ALL
    SELECT uid FROM works WHERE uid = CAST(:job_id AS INTEGER)
) AS found CROSS JOIN jobs ON jobs.uid = found.uid CROSS JOIN works ON works.uid = found.uid
WHERE jobs.job_id = :job_id
  AND (:projects = '[]' OR jobs.project_id IN (SELECT value FROM json_each(:projects)))
ORDER BY found.uid DESC LIMIT 1;

-- name: counts
SELECT value, (SELECT count(*) FROM (
    SELECT 1 FROM works INDEXED BY works_of_clients_by_state
    WHERE parent_uid = 0 AND state = value LIMIT :most))
FROM json_each(:states);

-- name: counts_of_project
SELECT value, (SELECT count(*) FROM (
    SELECT 1 FROM works INDEXED BY works_of_clients_by_state
    WHERE parent_uid = 0 AND state = value AND project_id = :project_id LIMIT :most))
FROM json_each(:states);

-- name: projects
WITH RECURSIVE named(id) AS (
    SELECT min(project_id) FROM works INDEXED BY works_of_projects WHERE parent_uid = 0
    UNION ALL
    SELECT (SELECT min(project_id) FROM works INDEXED BY works_of_projects
            WHERE parent_uid = 0 AND project_id > named.id)
    FROM named WHERE id IS NOT NULL)
SELECT id FROM named WHERE id IS NOT NULL;

-- name: child_states
SELECT uid, state FROM works INDEXED BY works_by_parent WHERE parent_uid = :parent AND parent_uid <> 0 ORDER BY uid;

-- name: states
SELECT works.uid, works.state FROM json_each(:uids) AS wanted CROSS JOIN works ON works.uid = wanted.value;

-- name: children
SELECT jobs.record, jobs.labels, jobs.labels_updated, works.kind, jobs.generation, jobs.labels_version
FROM works INDEXED BY works_by_parent CROSS JOIN jobs ON jobs.uid = works.uid
WHERE works.parent_uid = :parent AND works.parent_uid <> 0
ORDER BY works.uid;

-- name: timeline
SELECT at, kind, message, details FROM timeline WHERE job_uid = :uid ORDER BY seq;

-- name: operation
SELECT record FROM operations WHERE name = :name;

-- name: operations
SELECT record FROM operations WHERE name > :after AND name < :before ORDER BY name LIMIT :limit;

-- name: drained_nodes
SELECT node, since, reason FROM drained_nodes ORDER BY node;

-- name: quotas
-- A project may set a user's limit. It cannot exceed the service's limit for each user.
SELECT project_id, region, metric, person, min(ceiling, coalesce(
    (SELECT of_each.most FROM quotas AS of_each
     WHERE of_each.project_id = q.project_id AND of_each.region = q.region AND of_each.metric = q.metric
       AND of_each.person = 'each' AND q.person NOT IN ('', 'each') AND q.most IS NULL
       AND q.metric <> 'share'),
    ceiling))
FROM quotas AS q
ORDER BY project_id, region, metric, person;

-- name: past_use
SELECT project_id, person, machine, accelerator, ended / :stretch,
       sum(hours * machines), sum(hours * vcpus), sum(hours * memory_bytes) / 1e9,
       sum(hours * accelerators)
FROM (SELECT *, (ended - began) / 3.6e12 AS hours FROM uses WHERE ended > :since)
GROUP BY project_id, person, machine, accelerator, ended / :stretch;

-- name: machine_time
SELECT project_id, person, labels, node, machine, accelerator,
       sum(hours * machines), sum(hours * vcpus), sum(hours * memory_bytes) / 1e9,
       sum(hours * accelerators),
       total(hours * vcpus * (busy_cpus IS NOT NULL)), total(hours * busy_cpus),
       total(hours * accelerators * (busy_gpus IS NOT NULL)), total(hours * busy_gpus)
FROM (SELECT *, (min(ended, :until) - max(began, :since)) / 3.6e12 AS hours FROM uses
      WHERE ended > :since AND began < :until AND (:project_id IS NULL OR project_id = :project_id))
GROUP BY project_id, person, labels, node, machine, accelerator;

-- name: job_of_output
SELECT job_uid FROM job_outputs WHERE project_id = :project_id AND uri = :uri ORDER BY job_uid DESC LIMIT 1;
