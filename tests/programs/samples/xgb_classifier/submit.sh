#!/bin/bash
set -ex
python setup.py -q sdist
gcloud storage cp dist/trainer-0.1.tar.gz gs://${BUCKET_NAME}/source/
gcloud storage cp data/census.csv gs://${BUCKET_NAME}/data/

cat << EOF > job.yaml
workerPoolSpecs:
  machineSpec:
    machineType: n1-standard-4
  replicaCount: 1
  pythonPackageSpec:
    executorImageUri: us-docker.pkg.dev/vertex-ai/training/xgboost-cpu.1-6:latest
    packageUris: gs://${BUCKET_NAME}/source/trainer-0.1.tar.gz
    pythonModule: trainer.task
    args:
    - --dataset-uri=gs://${BUCKET_NAME}/data/census.csv
    - --boost-rounds=30
    env:
    - name: OMP_NUM_THREADS
      value: "2"
baseOutputDirectory:
  outputUriPrefix: gs://${BUCKET_NAME}/out
EOF
JOB=$(gcloud ai custom-jobs create --region=${REGION} --display-name=census-xgb --labels=team=risk --config=job.yaml --format="value(name)")
gcloud ai custom-jobs describe $JOB
