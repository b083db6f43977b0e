# -*- coding: utf-8 -*-
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import os
import tempfile

from google.cloud import storage
import pandas as pd
import six


def read_df_from_gcs(file_pattern, nrows=None):
    """Reads all files that fit the pattern into one frame."""
    bucket_name, _, prefix = file_pattern[5:].partition("/")
    prefix = prefix.split("*")[0]
    df_list = []
    for blob in storage.Client().list_blobs(bucket_name, prefix=prefix):
        with tempfile.NamedTemporaryFile(suffix=".csv") as f:
            blob.download_to_filename(f.name)
            df_list.append(pd.read_csv(f.name, nrows=nrows))
    return pd.concat(df_list)


def upload_to_gcs(local_path, gcs_path):
    bucket_name, blob_name = six.ensure_str(gcs_path).replace("gs://", "").split("/", 1)
    storage.Client().get_bucket(bucket_name).blob(blob_name).upload_from_filename(local_path)


def dump_object(obj, output_path, dump):
    with tempfile.NamedTemporaryFile() as f:
        dump(obj, f.name)
        upload_to_gcs(f.name, os.path.join(output_path, "model.joblib"))
