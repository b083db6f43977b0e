#!/usr/bin/env bash
set -euo pipefail
python3 setup.py --quiet sdist
gsutil cp dist/lgbdask-0.1.tar.gz gs://$BUCKET_NAME/packages/
IMAGE=us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest
cat > job.yaml <<EOF
baseOutputDirectory: {outputUriPrefix: "gs://$BUCKET_NAME/lgbdask"}
EOF
gcloud ai custom-jobs create --region=$REGION --display-name=lgbm-dask \
  --config=job.yaml \
  --python-package-uris=gs://$BUCKET_NAME/packages/lgbdask-0.1.tar.gz \
  --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,executor-image-uri=$IMAGE,python-module=trainer.task \
  --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,executor-image-uri=$IMAGE,python-module=trainer.task \
  --args="--rows=2000"
