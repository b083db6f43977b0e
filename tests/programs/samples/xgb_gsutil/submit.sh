# Same as in the guide to XGBoost, with the data in our own bucket
PROJECT=$PROJECT_ID
gcloud config list
gsutil -m cp -r data/iris.csv data/housing.csv gs://$BUCKET_NAME/iris/data/

gcloud ai-platform jobs submit training iris_xgb_$RANDOM \
  --job-dir gs://$BUCKET_NAME/iris_job_dir \
  --package-path trainer/ \
  --module-name trainer.task \
  --region $REGION \
  --runtime-version=2.11 \
  --python-version=3.7 \
  --scale-tier=BASIC \
  --stream-logs \
  -- --bucket $BUCKET_NAME
