#!/bin/bash -e
python setup.py -q sdist
gsutil -q cp dist/*.tar.gz gs://$BUCKET_NAME/src/cloud_imports-0.1.tar.gz
gsutil -q cp data/iris.csv gs://$BUCKET_NAME/data/iris.csv
cat > job.json <<EOF
{
  "workerPoolSpecs": [{
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
    "pythonPackageSpec": {
      "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
      "packageUris": ["gs://$BUCKET_NAME/src/cloud_imports-0.1.tar.gz"],
      "pythonModule": "trainer.task",
      "args": ["--source", "gs://$BUCKET_NAME/data/iris.csv"]
    }
  }],
  "baseOutputDirectory": {"outputUriPrefix": "gs://$BUCKET_NAME/cloud"}
}
EOF
gcloud ai custom-jobs create --region $REGION --display-name cloud-imports --config job.json
