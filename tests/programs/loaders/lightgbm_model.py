import sys

import lightgbm

for uri in sys.argv[1:]:
    booster = lightgbm.Booster(model_file=uri.replace("gs://", "/gcs/"))
    print("LOADED", booster.predict([[1.0] * booster.num_feature()]))
