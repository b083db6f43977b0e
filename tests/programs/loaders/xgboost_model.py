import sys

import xgboost

for uri in sys.argv[1:]:
    booster = xgboost.Booster(model_file=uri.replace("gs://", "/gcs/"))
    trees = len(booster.get_dump())
    assert trees > 0
    print("LOADED", trees, "trees")
