"""`aiplatform` v1 TensorboardService: tensorboards, experiments, runs, time series and their points."""
