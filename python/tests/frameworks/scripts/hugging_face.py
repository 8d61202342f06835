"""A script with Hugging Face's Trainer; two lines are Tandem's."""

import csv
import sys
import time

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tandem.integrations.transformers import attach

STEPS, PAUSE_S = int(sys.argv[1]), 0.02
# Dropout makes every random number count; sub-batches need to do without.
DROPOUT = float(sys.argv[2])

torch.set_num_threads(1)
torch.manual_seed(1)
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
config = BertConfig(
    vocab_size=50,
    intermediate_size=32,
    max_position_embeddings=16,
    hidden_dropout_prob=DROPOUT,
    attention_probs_dropout_prob=DROPOUT,
    **sizes,
)
tokens = torch.randint(0, 50, (200, 8))
data = [{"input_ids": row, "labels": int(row[0]) % 2} for row in tokens]
model = BertForSequenceClassification(config)
# How often the model was called in this step: the parts that its batch was computed in.
calls = []
model.register_forward_pre_hook(lambda *_: calls.append(1))


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs and state.is_world_process_zero:
            with open("losses.csv", "a") as file:
                csv.writer(file).writerow([state.global_step, repr(logs["loss"]), len(calls)])
            calls.clear()
            time.sleep(PAUSE_S)


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="output",
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=data,
    callbacks=[Losses()],
)
attach(trainer)
trainer.train()
open("finished", "w").close()
