#!/bin/bash
set -v
gsutil cp data/housing.csv gs://${BUCKET_NAME}/sonar/housing.csv
# https://cloud.google.com/ai-platform/training/docs/getting-started-pytorch
IMAGE_URI=gcr.io/cloud-ml-public/training/pytorch-xla.1-7
gcloud ai-platform jobs submit training sonar_$(date +%Y%m%d_%H%M%S) \
    --region ${REGION} \
    --master-image-uri ${IMAGE_URI} \
    --scale-tier=CUSTOM \
    --master-machine-type=n1-standard-8 \
    --job-dir gs://${BUCKET_NAME}/sonar/models \
    --package-path ./trainer \
    --module-name trainer.task \
    --stream-logs \
    -- \
    --train-file gs://${BUCKET_NAME}/sonar/housing.csv \
    --epochs=4
set -
