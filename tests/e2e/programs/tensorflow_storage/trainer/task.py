"""Uses gs:// through TensorFlow, from 1.15 on. Prints the duration of each operation."""

import argparse
import hashlib
import os
import time

import tensorflow as tf

v1, v2 = tf.compat.v1, tf.compat.v2
v1.enable_eager_execution()
gfile = v2.io.gfile
MEGABYTE = 1 << 20


def read_and_write(place):
    path = os.path.join(place, "notes.txt")
    with gfile.GFile(path, "w") as file:
        file.write("one\ntwo\n")
    with gfile.GFile(path, "a") as file:
        file.write("three\n")
    with gfile.GFile(path) as file:
        assert file.read() == "one\ntwo\nthree\n"
        file.seek(4)
        assert file.readline() == "two\n"
    facts = gfile.stat(path)
    assert (facts.length, facts.is_directory) == (14, False)
    assert facts.mtime_nsec > 1e18
    assert gfile.exists(path)
    assert not gfile.exists(path + ".none")
    assert not gfile.isdir(path)
    try:
        gfile.GFile(path + ".none").read()
    except tf.errors.NotFoundError:
        pass
    else:
        raise AssertionError("what is not there was read")


def names(place):
    gfile.makedirs(os.path.join(place, "tree", "inner"))
    for name in ("a.txt", "b.txt", "inner/c.txt"):
        with gfile.GFile(os.path.join(place, "tree", name), "w") as file:
            file.write(name)
    tree = os.path.join(place, "tree")
    assert sorted(gfile.listdir(tree)) == ["a.txt", "b.txt", "inner/"], gfile.listdir(tree)
    assert gfile.glob(tree + "/*.txt") == [tree + "/a.txt", tree + "/b.txt"]
    assert gfile.isdir(tree)
    walked = {name for _, _, files in gfile.walk(tree) for name in files}
    assert {"a.txt", "b.txt", "c.txt"} <= walked, walked
    gfile.copy(tree + "/a.txt", tree + "/copy.txt")
    try:
        gfile.copy(tree + "/b.txt", tree + "/copy.txt")
    except tf.errors.AlreadyExistsError:
        pass
    else:
        raise AssertionError("a copy replaced what was there")
    gfile.rename(tree + "/b.txt", tree + "/renamed.txt")
    assert not gfile.exists(tree + "/b.txt")
    assert gfile.GFile(tree + "/renamed.txt").read() == "b.txt"
    gfile.rename(tree, tree + "-moved")
    assert gfile.GFile(tree + "-moved/inner/c.txt").read() == "inner/c.txt"
    gfile.remove(tree + "-moved/a.txt")
    gfile.rmtree(tree + "-moved")
    assert not gfile.exists(tree + "-moved/copy.txt")
    assert not gfile.isdir(tree + "-moved")


def checkpoints(place):
    kept = v2.Variable([1.0, 2.0])
    manager = v2.train.CheckpointManager(
        v2.train.Checkpoint(kept=kept), os.path.join(place, "checkpoints"), max_to_keep=2
    )
    for _ in range(3):
        kept.assign_add([1.0, 1.0])
        manager.save()
    kept.assign([0.0, 0.0])
    latest = v2.train.latest_checkpoint(os.path.join(place, "checkpoints"))
    v2.train.Checkpoint(kept=kept).restore(latest).assert_consumed()
    assert kept.numpy().tolist() == [4.0, 5.0]
    assert len(gfile.glob(os.path.join(place, "checkpoints", "*.index"))) == 2


def savers(place):
    path = os.path.join(place, "saver", "model.ckpt")
    with v1.Graph().as_default(), v1.Session() as session:
        value = v1.get_variable("value", initializer=3.0)
        saver = v1.train.Saver()
        session.run(value.initializer)
        saver.save(session, path, global_step=7)
        session.run(value.assign(0.0))
        saver.restore(session, v1.train.latest_checkpoint(os.path.dirname(path)))
        assert session.run(value) == 3.0


def summaries(place):
    place = os.path.join(place, "summaries")
    with v2.summary.create_file_writer(place).as_default():
        for step in range(3):
            v2.summary.scalar("loss", 1.0 / (step + 1), step=step)
    (path,) = gfile.glob(place + "/events*")
    steps = [event.step for event in v1.train.summary_iterator(path) if event.summary.value]
    assert steps == [0, 1, 2], steps


def records(place):
    for part in range(2):
        with v2.io.TFRecordWriter(os.path.join(place, f"data-{part}.tfrecord")) as writer:
            for number in range(100):
                writer.write(str(100 * part + number).encode())
    files = v2.data.Dataset.list_files(os.path.join(place, "data-*.tfrecord"))
    numbers = v2.data.TFRecordDataset(files).map(v2.strings.to_number).batch(10)
    assert sorted(int(n) for batch in numbers for n in batch) == list(range(200))


def models(place):
    class Doubled(v2.Module):
        def __init__(self):
            super().__init__()
            self.factor = v2.Variable(2.0)

        @v2.function(input_signature=[v2.TensorSpec([None], v2.float32)])
        def __call__(self, x):
            return x * self.factor

    path = os.path.join(place, "model")
    v2.saved_model.save(Doubled(), path)
    assert v2.saved_model.load(path)(v2.constant([3.0])).numpy().tolist() == [6.0]


def a_large_file(place):
    path = os.path.join(place, "large.bin")
    part = os.urandom(4 * MEGABYTE)
    written, read = hashlib.md5(), hashlib.md5()
    with gfile.GFile(path, "wb") as file:
        for _ in range(25):
            file.write(part)
            written.update(part)
    assert gfile.stat(path).length == 100 * MEGABYTE
    with gfile.GFile(path, "rb") as file:
        while True:
            part = file.read(3 * MEGABYTE)
            if not part:
                break
            read.update(part)
    assert written.digest() == read.digest()
    gfile.remove(path)


parser = argparse.ArgumentParser()
parser.add_argument("--place", required=True)
args = parser.parse_args()
for step in (read_and_write, names, checkpoints, savers, summaries, records, models, a_large_file):
    begun = time.time()
    step(args.place)
    print(f"worked: {step.__name__} in {time.time() - begun:.1f} s", flush=True)
print("TensorFlow", tf.__version__)
