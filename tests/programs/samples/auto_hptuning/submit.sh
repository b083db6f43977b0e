#! /bin/bash
BUCKET="gs://$BUCKET_NAME"
JOB_ID="auto_hptuning_$(date +%s)"

gsutil cp data/housing.csv $BUCKET/auto/train.csv

gcloud ai-platform jobs submit training $JOB_ID \
    --job-dir=$BUCKET/auto/$JOB_ID \
    --staging-bucket=$BUCKET \
    --module-name=auto_mpg.train \
    --package-path=auto_mpg \
    --region=$REGION \
    --config=hptuning_config.yaml \
    -- \
    --data-file=$BUCKET/auto/train.csv
gcloud ai-platform jobs stream-logs $JOB_ID --polling-interval 1
gcloud ai-platform jobs describe $JOB_ID
