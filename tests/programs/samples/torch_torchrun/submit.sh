#!/bin/bash
set -e
gsutil cp train.py gs://$BUCKET_NAME/code/train.py
COMMAND="torchrun --nnodes=\$WORLD_SIZE --node_rank=\$RANK --nproc_per_node=2 --rdzv_id=job --rdzv_backend=c10d --rdzv_endpoint=\$MASTER_ADDR:\$MASTER_PORT /gcs/$BUCKET_NAME/code/train.py"
cat > config.yaml <<EOF
workerPoolSpecs:
- &pool
  machineSpec: {machineType: n1-standard-8}
  replicaCount: 1
  containerSpec:
    imageUri: us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-3.py310:latest
    command: ["bash", "-c", "$COMMAND"]
- *pool
baseOutputDirectory: {outputUriPrefix: "gs://$BUCKET_NAME/torchrun"}
EOF
gcloud ai custom-jobs create --region=$REGION --display-name=torchrun --config=config.yaml
