import os
import sys

import tensorflow as tf

# An estimator's export as well as Keras's, in TensorFlow 1 as well as 2.
for uri in sys.argv[1:]:
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], os.path.dirname(uri))
        outputs = {name: sorted(one.outputs) for name, one in graph.signature_def.items()}
        variables = session.run(tf.compat.v1.global_variables())
        print("LOADED", outputs, len(variables), "variables")
