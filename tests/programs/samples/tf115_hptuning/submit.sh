HPTUNING_CONFIG=hptuning_config.yaml
JOB_NAME=iris_hptune_$RANDOM
gsutil cp data/iris.csv gs://$BUCKET_NAME/iris.csv
gcloud ai-platform jobs submit training $JOB_NAME \
    --stream-logs \
    --job-dir gs://$BUCKET_NAME/iris \
    --runtime-version 1.15 --python-version 3.7 \
    --config $HPTUNING_CONFIG \
    --module-name trainer.task \
    --package-path trainer/ \
    --region $REGION \
    -- \
    --data gs://$BUCKET_NAME/iris.csv
