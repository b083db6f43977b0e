#!/bin/bash
set -e
python setup.py -q sdist
gsutil cp dist/wine-1.0.tar.gz gs://$BUCKET_NAME/wine/
sed "s/BUCKET/$BUCKET_NAME/" config.yaml.in > config.yaml
gcloud ai hp-tuning-jobs create \
  --region=$REGION \
  --display-name=wine-tuning \
  --max-trial-count=4 \
  --parallel-trial-count=2 \
  --config=config.yaml
