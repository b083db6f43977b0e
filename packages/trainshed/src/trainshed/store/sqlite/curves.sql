-- name: is_there
SELECT 1 FROM jobs WHERE uid = :uid;

-- name: open
INSERT INTO curve_jobs (job_uid) VALUES (:uid) ON CONFLICT DO NOTHING;

-- name: put_file
INSERT INTO curve_files (job_uid, path, record) VALUES (:uid, :path, :record)
ON CONFLICT (job_uid, path) DO UPDATE SET record = excluded.record;

-- name: put_series
INSERT INTO curve_series (job_uid, run, tag, record) VALUES (:uid, :run, :tag, :record)
ON CONFLICT (job_uid, run, tag) DO UPDATE SET record = excluded.record;

-- name: files
SELECT record FROM curve_files WHERE job_uid = :uid ORDER BY path;

-- name: series
SELECT record FROM curve_series WHERE job_uid = :uid ORDER BY run, tag;

-- name: finish
DELETE FROM curve_jobs WHERE job_uid = :uid;

-- name: unfinished
SELECT curve_jobs.job_uid FROM curve_jobs JOIN jobs ON jobs.uid = curve_jobs.job_uid
WHERE jobs.is_live = 0 ORDER BY curve_jobs.job_uid;
