"""Training jobs under a real daemon: paused, stopped with a checkpoint, started again, finished, with
the losses of the same job without interruption."""

import os
import unittest

from live import Live, needs, rows, run

STEPS = 120


class Stopped(Live):
    def check(self, command):
        """Stopped twice, the job has the losses that it has alone, and its script comes to its end."""
        run(command, self.alone)
        self.stopped_twice(self.daemon.submit(self.folder, command), 40)
        self.assertTrue(os.path.exists(os.path.join(self.folder, "finished")))
        self.assert_same(STEPS)

    def stopped_twice(self, job, step):
        """Paused, stopped, and stopped again in the second run."""
        self.reached(step // 2)
        self.assertEqual(self.daemon.pause_and_resume(job, self.folder), 0)
        for earlier in range(2):
            self.reached(step + earlier * step // 2)
            self.daemon.stop_and_start_again(job)
        self.completed(job)
        self.assertEqual(self.daemon.client.info(job)["runs"], 3)

    def two_ranks(self, *script):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        python, *rest = self.command(*script)
        return [python, *launcher, *rest]

    def split_in_mid_run(self, job, step):
        """Computed whole, in four sub-batches, and whole again; which, the last column says."""
        for number, parts in enumerate([4, 1]):
            self.reached(step * (number + 1))
            self.daemon.client.accum(job, parts)


@needs("torch")
class Torch(Stopped):
    def test_unmodified(self):
        """It cannot be asked for a checkpoint: ended and queued again, it continues from its own."""
        command = self.command("plain.py", STEPS)
        run(command, self.alone)
        job = self.daemon.submit(self.folder, command)
        self.reached(15)
        self.assertEqual(self.daemon.pause_and_resume(job, self.folder), 0)
        self.reached(35)
        self.daemon.stop_and_start_again(job)
        self.completed(job)
        self.assertEqual(self.daemon.client.info(job)["runs"], 2)
        self.assert_same(STEPS, repeated=10)

    def test_saves_on_a_signal(self):
        """Without a line of Tandem's it is stopped by its signal, and repeats no step."""
        command = self.command("signalled.py", STEPS)
        run(command, self.alone)
        self.stopped_twice(self.daemon.submit(self.folder, command, stop_signal="USR1"), 40)
        self.assert_same(STEPS)

    def test_with_tandem_job(self):
        command = self.command("with_job.py", STEPS)
        run(command, self.alone)
        self.stopped_twice(self.daemon.submit(self.folder, command), 40)
        self.assert_same(STEPS)

    def test_ddp(self):
        """Two ranks, in other sub-batches from the middle on, stopped and continued."""
        command = self.two_ranks("ddp.py", STEPS)
        run(command, self.alone)
        job = self.daemon.submit(self.folder, command)
        self.split_in_mid_run(job, 20)
        self.reached(60)
        self.daemon.stop_and_start_again(job)
        self.completed(job)
        self.assertEqual(self.daemon.client.info(job)["runs"], 2)
        self.assertEqual({row[2] for row in rows(self.folder)}, {"1", "4"})
        self.assert_same(STEPS, within=1e-5)


@needs("torch", "transformers", "accelerate")
class HuggingFace(Stopped):
    def test_trainer(self):
        self.check(self.command("hugging_face.py", STEPS, 0.1))

    def test_sub_batches(self):
        command = self.command("hugging_face.py", STEPS, 0.0)
        run(command, self.alone)
        job = self.daemon.submit(self.folder, command)
        self.split_in_mid_run(job, 20)
        self.completed(job)
        # The first batch in parts is computed twice more, to see how the loss is made.
        parts = [int(row[2]) for row in rows(self.folder)]
        self.assertEqual(sorted(set(parts)), [1, 4, 6])
        self.assertEqual(parts.count(6), 1)
        self.assert_same(STEPS, within=1e-5)

    def test_ddp(self):
        command = self.two_ranks("hugging_face.py", STEPS, 0.0)
        run(command, self.alone)
        job = self.daemon.submit(self.folder, command)
        self.split_in_mid_run(job, 20)
        self.reached(60)
        self.daemon.stop_and_start_again(job)
        self.completed(job)
        self.assertIn("4", {row[2] for row in rows(self.folder)})
        self.assert_same(STEPS, within=1e-5)

    def test_accelerator(self):
        self.check(self.command("accelerated.py", STEPS))

    def test_accelerator_with_ddp(self):
        self.check(self.two_ranks("accelerated.py", STEPS))


@needs("torch", "lightning")
class Lightning(Stopped):
    def test_trainer(self):
        self.check(self.command("lightning_module.py", STEPS, 1))

    def test_ddp(self):
        self.check(self.command("lightning_module.py", STEPS, 2))


@needs("torch", "composer")
class Composer(Stopped):
    def test_trainer(self):
        self.check(self.command("composed.py", STEPS))


if __name__ == "__main__":
    unittest.main()
