#!/bin/bash
set -v
gsutil cp data/housing.csv gs://"${BUCKET_NAME}"/taxi/data/train-00000.csv
gsutil cp data/housing.csv gs://"${BUCKET_NAME}"/taxi/data/train-00001.csv
python3 setup.py -q sdist
gsutil cp dist/taxi-0.1.tar.gz gs://"${BUCKET_NAME}"/taxi/taxi-0.1.tar.gz
cat > config.yaml <<EOF
baseOutputDirectory:
  outputUriPrefix: gs://${BUCKET_NAME}/taxi/out
workerPoolSpecs:
- machineSpec:
    machineType: n1-standard-4
  replicaCount: 1
  pythonPackageSpec:
    executorImageUri: us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.0-23:latest
    packageUris: [gs://${BUCKET_NAME}/taxi/taxi-0.1.tar.gz]
    pythonModule: trainer.task
    args: ["--input=gs://${BUCKET_NAME}/taxi/data/train-*.csv", "--n-estimators=20"]
EOF
gcloud ai custom-jobs create --region="${REGION}" --display-name=taxi --config=config.yaml
set -
