#!/bin/bash
export TRAIN_DATA=gs://$BUCKET_NAME/census/data/adult.data.csv
export EVAL_DATA=gs://$BUCKET_NAME/census/data/adult.test.csv
gsutil cp data/census.csv $TRAIN_DATA
gsutil cp data/census_test.csv $EVAL_DATA

JOB_NAME=census_estimator_$(date +%s)
OUTPUT_PATH=gs://$BUCKET_NAME/$JOB_NAME

gcloud ai-platform jobs submit training $JOB_NAME \
    --job-dir $OUTPUT_PATH \
    --runtime-version 1.15 \
    --python-version 3.7 \
    --module-name trainer.task \
    --package-path trainer/ \
    --region $REGION \
    --stream-logs \
    -- \
    --train-files $TRAIN_DATA \
    --eval-files $EVAL_DATA \
    --train-steps 120 \
    --eval-steps 5 \
    --verbosity INFO

gsutil ls -r $OUTPUT_PATH/export
