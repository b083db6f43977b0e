-- Exports of models are not served.
DELETE FROM operations WHERE json_extract(CAST(record AS TEXT), '$.kind') = 'export';
