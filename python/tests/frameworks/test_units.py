"""The adapters by themselves: exact sub-batches, limits of memory, which checkpoint is whose."""

import copy
import os
import tempfile
import time
import unittest
from unittest import mock

from live import needs


@needs("torch")
class Memory(unittest.TestCase):
    def limit(self, text, total=16 << 30, is_available=True):
        import torch

        from tandem.integrations import torch as adapter

        properties = mock.Mock(total_memory=total)
        with (
            mock.patch.dict(os.environ, {"TANDEM_GPU_MEMORY_LIMIT": text}),
            mock.patch.multiple(
                torch.cuda,
                is_available=lambda: is_available,
                current_device=lambda: 1,
                get_device_properties=lambda device: properties,
                set_per_process_memory_fraction=mock.DEFAULT,
            ) as patched,
        ):
            fraction = adapter.limit_memory()
            return fraction, patched["set_per_process_memory_fraction"].call_args_list

    def test_a_limit_is_set(self):
        self.assertEqual(self.limit(str(4 << 30)), (0.25, [mock.call(0.25, 1)]))
        self.assertEqual(self.limit(str(64 << 30)), (1.0, [mock.call(1.0, 1)]))

    def test_no_limit(self):
        for text in ["", "0", "-5", "much"]:
            self.assertEqual(self.limit(text), (None, []), text)
        self.assertEqual(self.limit(str(1 << 30), is_available=False), (None, []))


@needs("torch")
class Ranks(unittest.TestCase):
    def test_a_job_before_the_process_group(self):
        from tandem.integrations.torch import Job

        with mock.patch.dict(os.environ, {"WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(RuntimeError, "after torch.distributed.init_process_group"):
                Job()


@needs("torch", "accelerate")
class Epochs(unittest.TestCase):
    """What an Accelerator's loop sees of its data and of random numbers."""

    def seen(self, folder, stop_at=None):
        import torch
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration, set_seed

        from tandem.integrations.accelerate import Job

        set_seed(1)
        config = DataLoaderConfiguration(use_seedable_sampler=True)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        data = torch.utils.data.TensorDataset(torch.arange(16.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
        model, loader = accelerator.prepare(torch.nn.Linear(1, 1), loader)
        job = Job(accelerator, model, checkpoint=folder)
        begin, begun = job._begin, 0

        def counted():
            nonlocal begun
            begun += 1
            begin()
            job._stopping = job._stopping or begun == stop_at

        found = []
        try:
            with mock.patch.object(job, "_begin", counted):
                for _ in range(3):
                    for (x,) in job.batches(loader):
                        found.append((x.tolist(), torch.rand(1).item()))
        except SystemExit:
            pass
        return found

    def test_a_stop_before_the_first_batch_of_an_epoch(self):
        with tempfile.TemporaryDirectory() as alone:
            expected = self.seen(os.path.join(alone, "state"))
        self.assertEqual(len(expected), 12)
        for stop_at in [2, 5, 9]:
            with tempfile.TemporaryDirectory() as folder:
                folder = os.path.join(folder, "state")
                with mock.patch.dict(os.environ, {"TANDEM_JOB_ID": "7", "TANDEM_RUN": "1"}):
                    first = self.seen(folder, stop_at)
                self.assertEqual(len(first), stop_at - 1)
                with mock.patch.dict(os.environ, {"TANDEM_JOB_ID": "7", "TANDEM_RUN": "2"}):
                    self.assertEqual(first + self.seen(folder), expected, stop_at)


class FixedJob:
    """Stands for a job that was told to compute in so many parts."""

    def __init__(self, accum):
        import tandem

        self._job = tandem.Job(batch_size=64)
        self._job._in_step = self._job._accum = accum

    def __getattr__(self, name):
        return getattr(self._job, name)


@needs("torch", "transformers", "accelerate")
class Splitting(unittest.TestCase):
    def config(self, kind, **options):
        import transformers

        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        return getattr(transformers, kind)(
            vocab_size=50, intermediate_size=32, max_position_embeddings=32, **sizes, **options
        )

    def bert(self, kind):
        import transformers

        config = self.config(
            "BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=3
        )
        return getattr(transformers, kind)(config)

    def trainer(self, model, accum, kind=None, attach_options=None, **arguments):
        import transformers

        from tandem.integrations.transformers import attach

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        args = transformers.TrainingArguments(
            output_dir=folder.name, use_cpu=True, report_to=[], disable_tqdm=True, **arguments
        )
        trainer = (kind or transformers.Trainer)(model=model, args=args)
        attach(trainer, **(attach_options or {}))
        callback = trainer.callback_handler.callbacks[-1]
        self.assertEqual(type(callback).__name__, "TandemCallback")
        callback.job = FixedJob(accum)
        trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        return trainer

    def gradients(self, model, accum, batches, kind=None, **arguments):
        """Losses, gradients and how often the model was called, for the batches of one step."""
        import torch

        model = copy.deepcopy(model)
        calls = []
        model.register_forward_pre_hook(lambda *_: calls.append(1))
        steps = len(batches)
        trainer = self.trainer(
            model, accum, kind=kind, gradient_accumulation_steps=steps, **arguments
        )
        items = sum(int((batch["labels"] != -100).sum()) for batch in batches)
        losses = []
        for batch in batches:
            losses.append(trainer.training_step(model, dict(batch), torch.tensor(items)))
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        self.assertTrue(gradients)
        return losses, gradients, len(calls)

    def assert_exact(self, model, batches, accum=4, calls=None, **options):
        import torch

        whole = self.gradients(model, 1, batches, **options)
        parts = self.gradients(model, accum, batches, **options)
        for found, expected in zip(parts[0] + parts[1], whole[0] + whole[1]):
            self.assertLess(float((found - expected).abs().max()), 1e-6)
        self.assertTrue(any(float(g.abs().max()) > 1e-3 for g in whole[1]))
        self.assertEqual(whole[2], len(batches))
        # The first batch in parts is computed twice more, to see how the loss is made.
        self.assertEqual(parts[2], calls or accum * len(batches) + 2)
        torch.manual_seed(0)

    def tokens(self, size, length=8):
        import torch

        return torch.randint(1, 50, (size, length))

    def test_one_label_for_each_sample(self):
        import torch

        batch = {"input_ids": self.tokens(10), "labels": torch.randint(0, 3, (10,))}
        model = self.bert("BertForSequenceClassification")
        self.assert_exact(model, [batch])
        self.assert_exact(model, [batch, {k: v[:7] for k, v in batch.items()}])

    def test_labels_for_tokens_of_which_some_do_not_count(self):
        import torch

        ids = self.tokens(9)
        labels = torch.randint(0, 3, ids.shape)
        for row in range(9):
            labels[row, : row % 8] = -100
        batch = {"input_ids": ids, "labels": labels}
        model = self.bert("BertForTokenClassification")
        self.assert_exact(model, [batch])
        # A part without any label adds nothing, and must not add NaN.
        labels = labels.clone()
        labels[:3] = -100
        self.assert_exact(model, [{"input_ids": ids, "labels": labels}], accum=3, calls=4)

    def test_language_model(self):
        import transformers

        ids = self.tokens(8, 12)
        labels = ids.clone()
        for row in range(8):
            labels[row, row + 2 :] = -100
        batch = {"input_ids": ids, "labels": labels}
        model = transformers.LlamaForCausalLM(self.config("LlamaConfig"))
        self.assert_exact(model, [batch])
        self.assert_exact(model, [batch, {k: v[:5] for k, v in batch.items()}])

    def test_a_loss_of_ones_own(self):
        import torch
        import transformers

        class Own(transformers.Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
                outputs = model(input_ids=inputs["input_ids"])
                loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"])
                return (loss, outputs) if return_outputs else loss

        batch = {"input_ids": self.tokens(10), "labels": torch.randint(0, 3, (10,))}
        self.assert_exact(self.bert("BertForSequenceClassification"), [batch], kind=Own)

    def test_evaluation_is_not_weighted(self):
        import torch

        model = self.bert("BertForSequenceClassification").eval()
        trainer = self.trainer(model, 4)
        batch = {"input_ids": self.tokens(4), "labels": torch.randint(0, 3, (4,))}
        loss, outputs = trainer.compute_loss(model, dict(batch), return_outputs=True)
        self.assertAlmostEqual(float(loss), float(model(**batch).loss), places=6)
        self.assertEqual(outputs.logits.shape[0], 4)

    def test_what_has_no_common_dimension_is_computed_whole(self):
        import torch

        model = self.bert("BertForSequenceClassification")
        splitter = self.trainer(model, 4).training_step.__self__
        ids = self.tokens(8)
        for batch in [
            {"input_ids": ids, "cumulative": torch.arange(3)},
            {"input_ids": ids, "scale": torch.tensor(0.5)},
            {"names": ["a", "b"]},
            {"input_ids": ids[:1]},
            [ids],
        ]:
            self.assertIsNone(splitter._parts(batch))
        parts = splitter._parts({"input_ids": ids, "flag": True})
        self.assertEqual(
            [(len(p["input_ids"]), p["flag"], w) for p, w in parts], [(2, True, 0.25)] * 4
        )

    def test_batch_normalisation_is_not_split(self):
        import torch

        class Normalised(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)
                self.norm = torch.nn.BatchNorm1d(4)

        def offers(model, **options):
            trainer = self.trainer(model, 1, attach_options=options)
            return trainer.training_step.__self__._may_split(trainer.args, model)

        self.assertFalse(offers(Normalised()))
        self.assertTrue(offers(Normalised(), split=True))
        self.assertTrue(offers(torch.nn.Linear(4, 4)))
        self.assertFalse(offers(torch.nn.Linear(4, 4), split=False))


@needs("torch", "transformers", "accelerate")
class Checkpoints(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def found(self, job="7", run="2"):
        from tandem.integrations.transformers import _checkpoint_of_this_job

        with mock.patch.dict(os.environ, {"TANDEM_JOB_ID": job, "TANDEM_RUN": run}):
            path = _checkpoint_of_this_job(self.folder)
        return path and os.path.basename(path)

    def save(self, step, whole=True, age_s=0.0):
        folder = os.path.join(self.folder, f"checkpoint-{step}")
        os.mkdir(folder)
        if whole:
            path = os.path.join(folder, "trainer_state.json")
            open(path, "w").close()
            os.utime(path, (time.time() - age_s,) * 2)

    def note(self, job):
        from tandem.integrations._run import Note

        with mock.patch.dict(os.environ, {"TANDEM_JOB_ID": job}):
            Note(os.path.join(self.folder, "tandem-job.json")).write()

    def test_only_those_of_the_same_job(self):
        self.save(400, age_s=100)
        self.assertIsNone(self.found(), "nobody noted anything")
        self.note("7")
        self.assertIsNone(self.found(), "it is older than the job")
        self.save(9)
        self.save(20)
        self.save(30, whole=False)
        self.assertEqual(self.found(), "checkpoint-20")
        self.assertIsNone(self.found(run="1"), "the first run begins anew")
        self.assertIsNone(self.found(job="8"), "another job begins anew")


if __name__ == "__main__":
    unittest.main()
