-- name: job
SELECT jobs.record, jobs.labels, jobs.labels_updated, jobs.generation, jobs.labels_version
FROM job_names JOIN jobs ON jobs.uid = job_names.uid
WHERE job_names.api = :api AND job_names.project_id = :project_id
  AND job_names.location = :location AND job_names.job_id = :job_id;

-- name: job_by_uid
SELECT record, labels, labels_updated, generation, labels_version FROM jobs WHERE uid = :uid;

-- name: jobs_of_all
SELECT record, labels, labels_updated, generation, labels_version
FROM jobs
WHERE uid < :below
ORDER BY uid DESC LIMIT :limit;

-- name: jobs_of_project
SELECT record, labels, labels_updated, generation, labels_version
FROM jobs INDEXED BY jobs_by_project
WHERE project_id = :project_id AND uid < :below
ORDER BY uid DESC LIMIT :limit;

-- name: jobs_of_api
SELECT record, labels, labels_updated, generation, labels_version
FROM jobs INDEXED BY jobs_by_api
WHERE project_id = :project_id AND api = :api AND uid < :below
ORDER BY uid DESC LIMIT :limit;

-- name: jobs_of_location
SELECT record, labels, labels_updated, generation, labels_version
FROM jobs INDEXED BY jobs_by_location
WHERE project_id = :project_id AND api = :api AND location = :location AND uid < :below
ORDER BY uid DESC LIMIT :limit;

-- name: find
SELECT record, labels, labels_updated, generation, labels_version
FROM jobs INDEXED BY jobs_by_job_id
WHERE job_id = :job_id
ORDER BY uid DESC LIMIT 1;

-- name: timeline
SELECT at, kind, message, details FROM timeline WHERE job_uid = :uid ORDER BY seq;

-- name: operation
SELECT name, kind, target, created, updated FROM operations WHERE name = :name;

-- name: operations
SELECT name, kind, target, created, updated
FROM operations
WHERE name > :after AND name < :before
ORDER BY name LIMIT :limit;

-- name: drained_nodes
SELECT node, since, reason FROM drained_nodes ORDER BY node;

-- name: quotas
SELECT project_id, region, metric, ceiling FROM quotas ORDER BY project_id, region, metric;

-- name: drill_plan
SELECT project_id, name, drills FROM drill_plans WHERE project_id = :project_id AND name = :name;

-- name: drill_plans
SELECT project_id, name, drills FROM drill_plans WHERE project_id = :project_id ORDER BY name;
