-- Persistent resources are not served: they reserved nothing. Nor are exports of datasets.
DROP TABLE persistent_resources;
DELETE FROM operations WHERE json_extract(CAST(record AS TEXT), '$.kind') = 'export_data';
