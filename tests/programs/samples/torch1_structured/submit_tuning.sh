#!/bin/bash
gsutil cp data/housing.csv gs://${BUCKET_NAME}/sonar/housing.csv
gcloud ai-platform jobs submit training sonar_hpt_$(date +%Y%m%d_%H%M%S) \
    --region ${REGION} \
    --master-image-uri gcr.io/cloud-ml-public/training/pytorch-gpu.1-7 \
    --scale-tier=BASIC \
    --config hptuning_config.yaml \
    --job-dir gs://${BUCKET_NAME}/sonar/models \
    --package-path ./trainer \
    --module-name trainer.task \
    --stream-logs \
    -- \
    --train-file gs://${BUCKET_NAME}/sonar/housing.csv --epochs=2
