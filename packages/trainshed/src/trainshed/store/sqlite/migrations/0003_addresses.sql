-- Addresses are stored and compared in lower case. A limit that was set in lower case wins.
INSERT INTO quotas SELECT project_id, region, metric, lower(person), ceiling FROM quotas WHERE person <> lower(person)
ON CONFLICT DO NOTHING;
DELETE FROM quotas WHERE person <> lower(person);
UPDATE work_labels SET value = lower(value) WHERE key = '@person' AND value <> lower(value);
