#!/bin/bash
set -e
# A library of ours goes along as a wheel
(cd libs && python -m pip wheel -q --no-deps --no-build-isolation -w ../dist .)

gcloud ai-platform jobs submit training diabetes_$(date +%s) \
    --stream-logs \
    --region $REGION \
    --staging-bucket gs://$BUCKET_NAME \
    --job-dir gs://$BUCKET_NAME/diabetes \
    --module-name trainer.task \
    --package-path $PWD/trainer \
    --packages dist/shared_lib-1.2-py3-none-any.whl \
    --labels type=regression,owner=someone \
    -- \
    --alpha=0.5 --verbose
