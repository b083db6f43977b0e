#!/bin/bash
set -e
gsutil cp data/housing.csv gs://$BUCKET_NAME/data/housing.csv
gcloud ai-platform jobs submit training keras_$(date +%s) \
  --package-path trainer/ \
  --module-name trainer.task \
  --region $REGION \
  --python-version 3.7 \
  --runtime-version 2.1 \
  --job-dir gs://$BUCKET_NAME/keras-job-dir \
  --stream-logs \
  -- --train-file gs://$BUCKET_NAME/data/housing.csv --num-epochs 4
