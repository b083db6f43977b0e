import argparse
import os
import pickle

import pandas
from google.cloud import storage
from sklearn.tree import DecisionTreeClassifier


def main(job_dir, depth, data):
    iris = pandas.read_csv(data)
    tree = DecisionTreeClassifier(max_depth=depth).fit(
        iris.drop("species", axis=1), iris["species"]
    )
    with open("model.pkl", "wb") as model_file:
        pickle.dump(tree, model_file)
    storage_path = os.path.join(job_dir, "model.pkl")
    blob = storage.blob.Blob.from_string(storage_path, client=storage.Client())
    blob.upload_from_filename("model.pkl")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--job-dir")
    parser.add_argument("--depth", type=int)
    parser.add_argument("--data")
    main(**vars(parser.parse_args()))
