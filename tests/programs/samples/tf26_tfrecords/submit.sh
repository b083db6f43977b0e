#!/bin/bash
gsutil -m cp -r data/digits gs://$BUCKET_NAME/
gcloud ai-platform jobs submit training digits_functional \
  --region=$REGION --config=config.yaml --stream-logs \
  --module-name=trainer.task --package-path=./trainer --job-dir=gs://$BUCKET_NAME/functional \
  -- --pattern=gs://$BUCKET_NAME/digits/*.tfrecord --epochs=3
