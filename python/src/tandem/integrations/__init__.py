"""Adapters for training frameworks; each module imports its framework, this one none.

- `tandem.integrations.torch`: a loop of one's own, also with DDP
- `tandem.integrations.transformers`: Hugging Face's Trainer
- `tandem.integrations.lightning`: Lightning's Trainer
- `tandem.integrations.accelerate`: a loop with an Accelerator
- `tandem.integrations.composer`: Composer's Trainer
"""
