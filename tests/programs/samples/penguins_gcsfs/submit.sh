#!/bin/bash
set -e

BUCKET=gs://${BUCKET_NAME}

python setup.py -q sdist --formats=gztar
gcloud storage cp dist/penguins-0.1.tar.gz ${BUCKET}/penguins/
gcloud storage cp data/penguins.csv ${BUCKET}/penguins/data/

cat > config.yaml <<EOF
baseOutputDirectory:
  outputUriPrefix: ${BUCKET}/penguins/output
EOF

gcloud ai custom-jobs create \
  --region=${REGION} \
  --display-name=penguins \
  --python-package-uris=${BUCKET}/penguins/penguins-0.1.tar.gz \
  --worker-pool-spec=machine-type=n1-standard-4,replica-count=1,executor-image-uri=us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest,python-module=trainer.task \
  --config=config.yaml \
  --args=--dataset=${BUCKET}/penguins/data/penguins.csv,--folds=4
