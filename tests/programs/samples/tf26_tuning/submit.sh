#!/bin/bash
set -e
python setup.py -q sdist
gsutil cp dist/horses-0.1.tar.gz gs://$BUCKET_NAME/
cat > config.yaml <<EOF
displayName: horses
maxTrialCount: 3
parallelTrialCount: 1
studySpec:
  metrics:
  - metricId: val_accuracy
    goal: MAXIMIZE
  parameters:
  - parameterId: learning_rate
    scaleType: UNIT_LOG_SCALE
    doubleValueSpec: {minValue: 0.01, maxValue: 1}
  - parameterId: momentum
    scaleType: UNIT_LINEAR_SCALE
    doubleValueSpec: {minValue: 0, maxValue: 1}
  - parameterId: units
    discreteValueSpec: {values: [8, 16]}
  measurementSelectionType: BEST_MEASUREMENT
trialJobSpec:
  workerPoolSpecs:
  - machineSpec: {machineType: n1-standard-4}
    replicaCount: 1
    pythonPackageSpec:
      executorImageUri: us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-6:latest
      packageUris: ["gs://$BUCKET_NAME/horses-0.1.tar.gz"]
      pythonModule: trainer.task
  baseOutputDirectory: {outputUriPrefix: "gs://$BUCKET_NAME/horses"}
EOF
gcloud ai hp-tuning-jobs create --region=$REGION --display-name=horses --config=config.yaml \
  --max-trial-count=3 --parallel-trial-count=1
