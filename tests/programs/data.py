"""The programs' data: small tables, images and TFRecord files, the same in every run."""

import csv
import importlib
import random
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tests.e2e.programs.event_writer import field, frame_record

_WORK = ("Private", "Self-emp-not-inc", "Local-gov", "?")
_EDUCATION = (("HS-grad", 9), ("Some-college", 10), ("Bachelors", 13), ("Masters", 14))
_OCCUPATIONS = ("Sales", "Craft-repair", "Exec-managerial", "Tech-support")
_MARRIED = (("Married-civ-spouse", "Husband"), ("Never-married", "Not-in-family"))


def _datasets() -> Any:
    """Import the library of data sets lazily, because only one test worker runs the programs."""
    return importlib.import_module("sklearn.datasets")


def write(name: str, place: Path) -> None:
    """Write a data set below `place`. A name is a file (`iris.csv`) or a directory (`digits`)."""
    place.mkdir(parents=True, exist_ok=True)
    _WRITERS[name](place / name)


def _table(path: Path, rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if header:
            writer.writerow(header)
        writer.writerows(rows)


def _census(path: Path) -> None:
    """Write the census table without a header and with a blank after each comma, like the original."""
    chance = random.Random(path.name)
    lines: list[str] = []
    for _ in range(400):
        (education, years), (status, relation) = chance.choice(_EDUCATION), chance.choice(_MARRIED)
        age, hours = chance.randint(18, 80), chance.randint(10, 60)
        income = ">50K" if age / 4 + hours / 3 + 2 * years > 50 else "<=50K"
        row: tuple[Any, ...] = (
            *(age, chance.choice(_WORK), chance.randint(10_000, 500_000), education, years),
            *(status, chance.choice(_OCCUPATIONS), relation, "White"),
            *(chance.choice(("Male", "Female")), 0, 0, hours, "United-States", income),
        )
        lines.append(", ".join(map(str, row)))
    path.write_text("\n".join(lines) + "\n")


def _iris(path: Path) -> None:
    data = _datasets().load_iris()
    rows = [(*features, label) for features, label in zip(data.data, data.target, strict=True)]
    _table(path, rows, ("sepal_length", "sepal_width", "petal_length", "petal_width", "species"))


def _housing(path: Path) -> None:
    chance = random.Random(1)
    rows: list[list[float]] = []
    for _ in range(300):
        features = [round(chance.uniform(0, 10), 3) for _ in range(8)]
        rows.append([*features, round(3 * features[0] - features[1] + chance.gauss(20, 1), 3)])
    _table(path, rows, (*(f"x{i}" for i in range(8)), "price"))


def _penguins(path: Path) -> None:
    """Write the penguins table with missing values, like the original."""
    chance = random.Random(2)
    rows: list[tuple[Any, ...]] = []
    for number in range(200):
        species, length = chance.choice((("Adelie", 38), ("Gentoo", 47), ("Chinstrap", 49)))
        bill = round(chance.gauss(length, 2), 1) if number % 17 else ""
        sex = chance.choice(("MALE", "FEMALE", ""))
        rows.append((species, chance.choice(("Biscoe", "Dream")), bill, chance.gauss(18, 1), sex))
    _table(path, rows, ("species", "island", "bill_length_mm", "bill_depth_mm", "sex"))


def _reviews(path: Path) -> None:
    chance = random.Random(3)
    rows: list[tuple[str, int]] = []
    for number in range(120):
        label = number % 2
        mood = chance.choice(("good", "great", "fine") if label else ("bad", "awful", "dull"))
        rows.append((f"this {chance.choice(('film', 'book', 'song'))} was {mood}", label))
    _table(path, rows, ("text", "label"))


def _digits(directory: Path) -> None:
    """Write TFRecord files of tf.train.Example: `image` (64 floats) and `label`."""
    directory.mkdir()
    data = _datasets().load_digits()
    pairs = list(zip(data.data[:600] / 16, data.target[:600], strict=True))
    for shard in range(2):
        with (directory / f"train-{shard:05d}.tfrecord").open("wb") as file:
            for image, label in pairs[shard::2]:
                file.write(frame_record(_example([float(value) for value in image], int(label))))


def _example(image: list[float], label: int) -> bytes:
    floats = field(2, field(1, struct.pack("<64f", *image)))
    integers = field(3, field(1, bytes([label])))
    entries = (field(1, b"image") + field(2, floats), field(1, b"label") + field(2, integers))
    return field(1, b"".join(field(1, entry) for entry in entries))


def _flowers(directory: Path) -> None:
    """Write images of two classes, one directory each."""
    chance = random.Random(4)
    for label, red in (("roses", 220), ("violets", 60)):
        (directory / label).mkdir(parents=True)
        for number in range(8):
            color = (red, chance.randint(0, 120), 280 - red)
            Image.new("RGB", (48, 40), color).save(directory / label / f"{number}.png")


_WRITERS: dict[str, Callable[[Path], None]] = {
    "census.csv": _census,
    "census_test.csv": _census,
    "iris.csv": _iris,
    "housing.csv": _housing,
    "penguins.csv": _penguins,
    "reviews.csv": _reviews,
    "digits": _digits,
    "flowers": _flowers,
}
