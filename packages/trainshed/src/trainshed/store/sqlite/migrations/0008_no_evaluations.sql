-- Evaluations of models are not served.
DROP TABLE model_evaluations;
