#!/bin/bash
set -e
gcloud storage cp data/housing.csv gs://$BUCKET_NAME/input/part-0.csv
gcloud storage cp data/housing.csv gs://$BUCKET_NAME/input/part-1.csv
gcloud storage cp run.sh gs://$BUCKET_NAME/code/run.sh
cat > config.yaml <<EOF
workerPoolSpecs:
- machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec:
    imageUri: us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest
    command: [bash, -c]
    args: ["gsutil cp gs://$BUCKET_NAME/code/run.sh . && bash run.sh"]
    env:
    - {name: BUCKET, value: $BUCKET_NAME}
baseOutputDirectory: {outputUriPrefix: "gs://$BUCKET_NAME/output"}
EOF
gcloud ai custom-jobs create --region=$REGION --display-name=shell --config=config.yaml
