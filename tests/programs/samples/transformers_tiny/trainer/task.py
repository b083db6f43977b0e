import argparse
import os

import hypertune
import numpy as np
from sklearn.metrics import accuracy_score
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from trainer import utils


class HPTuneCallback(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        hypertune.HyperTune().report_hyperparameter_tuning_metric(
            hyperparameter_metric_tag="accuracy",
            metric_value=metrics["eval_accuracy"],
            global_step=state.epoch,
        )


def compute_metrics(prediction):
    return {"accuracy": accuracy_score(prediction.label_ids, np.argmax(prediction.predictions, axis=1))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--num-epochs", type=int, default=1)
    parser.add_argument("--job-dir", default=os.getenv("AIP_MODEL_DIR"))
    args = parser.parse_args()
    data = utils.load(args.data)
    tokenizer = utils.tokenizer(data["train"]["text"])
    data = data.map(lambda batch: tokenizer(batch["text"], truncation=True, max_length=16), batched=True)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        TrainingArguments(
            output_dir=os.path.join("/tmp", "output"),
            num_train_epochs=args.num_epochs,
            per_device_train_batch_size=8,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to="none",
            logging_steps=5,
        ),
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=[HPTuneCallback()],
    )
    trainer.train()
    print(trainer.evaluate())
    trainer.save_model("/tmp/model")
    tokenizer.save_pretrained("/tmp/model")
    utils.upload("/tmp/model", args.job_dir)


if __name__ == "__main__":
    main()
