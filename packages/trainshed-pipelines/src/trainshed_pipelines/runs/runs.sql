-- name: insert_spec
INSERT INTO pipeline_specs (run_uid, spec) VALUES (:run, :spec);

-- name: spec
SELECT spec FROM pipeline_specs WHERE run_uid = :run;

-- name: listed_spec
SELECT spec FROM pipeline_specs WHERE run_uid = :run AND length(spec) <= :limit;

-- name: put_task
INSERT INTO pipeline_tasks (run_uid, number, record) VALUES (:run, :number, :record)
ON CONFLICT (run_uid, number) DO UPDATE SET record = excluded.record;

-- name: tasks
SELECT record FROM pipeline_tasks WHERE run_uid = :run ORDER BY number;

-- name: put_cached
INSERT INTO pipeline_cache (project_id, location, fingerprint, template, task, source, stored, outputs)
VALUES (:project_id, :location, :fingerprint, :template, :task, :source, :stored, :outputs)
ON CONFLICT (project_id, location, fingerprint) DO UPDATE
SET template = excluded.template, task = excluded.task, source = excluded.source, stored = excluded.stored,
    outputs = excluded.outputs;

-- name: cached
SELECT source, outputs FROM pipeline_cache
WHERE project_id = :project_id AND location = :location AND fingerprint = :fingerprint;
