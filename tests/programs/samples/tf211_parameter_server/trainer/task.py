"""ParameterServerStrategy: the chief coordinates, workers compute, parameter servers keep the variables."""

import json
import os

import tensorflow as tf

tf_config = json.loads(os.environ["TF_CONFIG"])
task_type = tf_config["task"]["type"]
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

if resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        start=True,
    )
    print("serving as", resolver.task_type, resolver.task_id)
    server.join()

strategy = tf.distribute.ParameterServerStrategy(
    resolver,
    variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=256 << 10, max_shards=resolver.cluster_spec().num_tasks("ps")
    ),
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dense(1)])
    model.build((None, 3))
    optimizer = tf.keras.optimizers.legacy.SGD(0.05)


@tf.function
def worker_step(iterator):
    def replica_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.run(replica_step, args=(next(iterator),))


def dataset_fn():
    x = tf.random.stateless_uniform([512, 3], seed=[0, 1])
    y = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).repeat().batch(32)


per_worker = coordinator.create_per_worker_dataset(
    lambda: strategy.distribute_datasets_from_function(lambda _: dataset_fn())
)
iterator = iter(per_worker)
for epoch in range(3):
    losses = [coordinator.schedule(worker_step, args=(iterator,)) for _ in range(20)]
    coordinator.join()
    print("epoch", epoch, "loss", float(losses[-1].fetch()))
model.save(os.environ["AIP_MODEL_DIR"])
