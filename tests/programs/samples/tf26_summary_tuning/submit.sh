#!/bin/bash
gcloud ai-platform jobs submit training summaries_tuning --stream-logs \
  --config hptuning.yaml --region $REGION --runtime-version 2.6 --python-version 3.7 \
  --job-dir gs://$BUCKET_NAME/summaries --package-path trainer --module-name trainer.task
