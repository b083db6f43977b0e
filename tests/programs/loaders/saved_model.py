import os
import sys

import tensorflow as tf

# Exports of estimators and of Keras, from TensorFlow 1 and 2.
for uri in sys.argv[1:]:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], os.path.dirname(uri))
        signatures = graph.signature_def.items()
        outputs = {name: sorted(signature.outputs) for name, signature in signatures}
        variables = session.run(tf.compat.v1.global_variables())
        print("LOADED", outputs, len(variables), "variables")
