import os

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


def tokenizer(texts):
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    raw.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )


def load(path):
    return Dataset.from_csv(path, cache_dir="/tmp/datasets").train_test_split(0.25, seed=0)


def upload(directory, target):
    """Copies a directory into Cloud Storage."""
    from google.cloud import storage

    bucket_name, _, prefix = target[len("gs://") :].partition("/")
    bucket = storage.Client().bucket(bucket_name)
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.path.isfile(path):
            bucket.blob(prefix.rstrip("/") + "/" + name).upload_from_filename(path)
