import pickle
import sys

for uri in sys.argv[1:]:
    with open(uri.replace("gs://", "/gcs/"), "rb") as file:
        model = pickle.load(file)
    print("LOADED", type(model).__name__, sorted(vars(model))[:3])
