#!/bin/bash
gsutil -m cp data/digits/*.tfrecord gs://${BUCKET_NAME}/digits/
now=$(date +"%Y%m%d_%H%M%S")
gcloud ai-platform jobs submit training digits_$now \
  --stream-logs \
  --config config.yaml \
  --job-dir gs://${BUCKET_NAME}/digits/out \
  --package-path trainer \
  --module-name trainer.task \
  --runtime-version 1.15 \
  --python-version 3.7 \
  --region ${REGION} \
  -- \
  --train-data "gs://${BUCKET_NAME}/digits/*.tfrecord"
