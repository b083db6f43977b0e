#!/bin/bash
# Trains on AI Platform in the default runtime.
set -ev

gsutil -m cp data/census.csv gs://${BUCKET_NAME}/census/data/census.csv

JOB_NAME=census_sklearn_$(date +%Y%m%d_%H%M%S)

gcloud ai-platform jobs submit training ${JOB_NAME} \
  --job-dir gs://${BUCKET_NAME}/census/model \
  --package-path ./trainer \
  --module-name trainer.task \
  --region ${REGION} \
  --scale-tier BASIC \
  --stream-logs \
  -- \
  --input gs://${BUCKET_NAME}/census/data/census.csv \
  --n-estimators 20 \
  --max-depth 6
