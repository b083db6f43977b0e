#!/bin/bash
set -e
python setup.py -q sdist
gsutil cp dist/pstrain-0.1.tar.gz gs://$BUCKET_NAME/ps/
IMAGE=us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11.py310:latest
echo "baseOutputDirectory: {outputUriPrefix: 'gs://$BUCKET_NAME/ps/out'}" > base.yaml
POOL="machine-type=n1-standard-4,executor-image-uri=$IMAGE,python-module=trainer.task"
gcloud ai custom-jobs create --region=$REGION --display-name=parameter-server --config=base.yaml \
  --python-package-uris=gs://$BUCKET_NAME/ps/pstrain-0.1.tar.gz \
  --worker-pool-spec=$POOL,replica-count=1 \
  --worker-pool-spec=$POOL,replica-count=2 \
  --worker-pool-spec=$POOL,replica-count=1
