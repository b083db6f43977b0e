import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers

EPOCHS = int(os.environ.get("EPOCHS", 3))
rng = np.random.default_rng(0)
images = rng.random((256, 16, 16, 3), dtype="float32")
labels = (images.mean(axis=(1, 2, 3)) > 0.5).astype("int64")

model = keras.Sequential(
    [
        keras.Input((16, 16, 3)),
        layers.RandomFlip("horizontal"),
        layers.Conv2D(8, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

checkpoint_dir = os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/")
os.makedirs(checkpoint_dir, exist_ok=True)
model.fit(
    images,
    labels,
    validation_split=0.2,
    epochs=EPOCHS,
    callbacks=[
        keras.callbacks.TensorBoard(log_dir=os.environ["AIP_TENSORBOARD_LOG_DIR"], histogram_freq=1),
        keras.callbacks.ModelCheckpoint(
            os.path.join(checkpoint_dir, "weights-{epoch:02d}.weights.h5"), save_weights_only=True
        ),
        keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True),
    ],
)

model_dir = os.environ["AIP_MODEL_DIR"]
model.export(os.path.join(model_dir, "export"))
model.save("/tmp/model.keras")
tf.io.gfile.copy("/tmp/model.keras", os.path.join(model_dir, "model.keras"), overwrite=True)
