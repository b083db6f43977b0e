#!/bin/bash
set -e
gcloud storage cp data/housing.csv gs://$BUCKET_NAME/data/housing.csv
tar --exclude=data --exclude=submit.sh -cf ../custom.tar . && gzip -f ../custom.tar
gcloud storage cp ../custom.tar.gz gs://$BUCKET_NAME/trainer_boston.tar.gz
cat > spec.yaml <<EOF
baseOutputDirectory: {outputUriPrefix: "gs://$BUCKET_NAME/boston"}
EOF
gcloud ai custom-jobs create --region=$REGION --display-name=boston --config=spec.yaml \
  --python-package-uris=gs://$BUCKET_NAME/trainer_boston.tar.gz \
  --worker-pool-spec=machine-type=n1-standard-4,executor-image-uri=us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11.py310:latest,python-module=trainer.task \
  --args=--data=gs://$BUCKET_NAME/data/housing.csv,--epochs=4,--distribute=single
