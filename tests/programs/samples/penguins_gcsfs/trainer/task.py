import argparse
import json
import os
import pickle

import fsspec
import gcsfs
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", type=str, required=True)
    parser.add_argument("--model-dir", type=str, default=os.getenv("AIP_MODEL_DIR"))
    parser.add_argument("--folds", type=int, default=3)
    return parser.parse_args()


def main():
    args = get_args()
    df = pd.read_csv(args.dataset)
    df.info()
    df = df.dropna(subset=["species"]).reset_index(drop=True)
    y = df.pop("species").astype("category")

    columns = make_column_transformer(
        (
            make_pipeline(
                SimpleImputer(strategy="most_frequent"),
                OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
            ),
            make_column_selector(dtype_include=object),
        ),
        (SimpleImputer(), make_column_selector(dtype_include="number")),
    )
    search = GridSearchCV(
        make_pipeline(columns, GradientBoostingClassifier(random_state=0)),
        {"gradientboostingclassifier__n_estimators": [5, 20]},
        cv=args.folds,
    )
    search.fit(df, y)
    scores = cross_val_score(search.best_estimator_, df, y, cv=args.folds)
    print("best parameters", search.best_params_, "scores", scores)

    fs = gcsfs.GCSFileSystem()
    with fs.open(os.path.join(args.model_dir, "model.pkl"), "wb") as f:
        pickle.dump(search.best_estimator_, f)
    with fsspec.open(os.path.join(args.model_dir, "metrics.json"), "w") as f:
        json.dump({"mean": float(scores.mean())}, f)
    frame = pd.DataFrame({"species": y, "predicted": search.predict(df)})
    frame.groupby(["species", "predicted"], observed=True).size().to_csv(
        os.path.join(args.model_dir, "confusion.csv")
    )


if __name__ == "__main__":
    main()
