from __future__ import annotations

import logging
from importlib import resources
from pathlib import Path

import click
import joblib
import numpy as np
import yaml
from pydantic import BaseModel
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

log = logging.getLogger("concrete")


class Settings(BaseModel):
    hidden: list[int]
    alpha: float


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--output", envvar="AIP_MODEL_DIR", required=True)
@click.option("--alpha", type=float)
def train(data: Path, output: str, alpha: float | None) -> None:
    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s")
    defaults = yaml.safe_load(resources.files("concrete").joinpath("defaults.yaml").read_text())
    settings = Settings(**{**defaults, **({"alpha": alpha} if alpha else {})})
    log.info("settings %s", settings)
    table = np.genfromtxt(data, delimiter=",", skip_header=1)
    model = make_pipeline(
        StandardScaler(),
        MLPRegressor(tuple(settings.hidden), alpha=settings.alpha, max_iter=400, random_state=0),
    )
    model.fit(table[:, :-1], table[:, -1])
    log.info("r2 %.3f", model.score(table[:, :-1], table[:, -1]))
    target = Path(output.replace("gs://", "/gcs/", 1))
    target.mkdir(parents=True, exist_ok=True)
    joblib.dump(model, target / "model.joblib")


if __name__ == "__main__":
    train()
