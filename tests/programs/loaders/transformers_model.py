import os
import sys

from transformers import AutoModelForSequenceClassification, AutoTokenizer

for uri in sys.argv[1:]:
    directory = os.path.dirname(uri.replace("gs://", "/gcs/"))
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    tokens = AutoTokenizer.from_pretrained(directory)("this was good", return_tensors="pt")
    tokens.pop("token_type_ids", None)
    print("LOADED", model(**tokens).logits.tolist())
