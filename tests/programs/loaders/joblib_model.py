import sys

import joblib

for uri in sys.argv[1:]:
    model = joblib.load(uri.replace("gs://", "/gcs/"))
    print("LOADED", type(model).__name__, sorted(vars(model))[:3])
