-- Addresses are stored and compared in lower case. A limit that was set in lower case wins, then the lowest one.
-- `normalize_email` is a function of the connection, because lower() of SQLite changes ASCII letters only. It takes
-- bytes: text that is not valid UTF-8 cannot be passed to it.
CREATE TEMPORARY TABLE addresses AS
SELECT address, CAST(normalize_email(CAST(address AS BLOB)) AS TEXT) AS normal
FROM (SELECT person AS address FROM quotas UNION SELECT value FROM work_labels WHERE key = '@person');
DELETE FROM addresses WHERE address = normal;
CREATE UNIQUE INDEX temp.by_address ON addresses (address, normal);
INSERT INTO quotas
SELECT project_id, region, metric, normal, min(ceiling) FROM quotas JOIN addresses ON person = address
GROUP BY project_id, region, metric, normal
ON CONFLICT DO NOTHING;
DELETE FROM quotas WHERE person IN (SELECT address FROM addresses);
UPDATE work_labels SET value = (SELECT normal FROM addresses WHERE address = value)
WHERE key = '@person' AND value IN (SELECT address FROM addresses);
DROP TABLE addresses;
