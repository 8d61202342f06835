import os
import time
import unittest
import unittest.mock
from collections import namedtuple

import tandem
from daemon import WithSocket, until
from tandem import _line


class Talking(WithSocket):
    def start(self, **options):
        daemon = self.daemon()
        job = tandem.Job(**options)
        self.addCleanup(job._line.close)
        return job, self.accept(daemon), daemon

    def accept(self, daemon):
        talk = daemon.accept()
        self.addCleanup(talk.close)
        return talk

    def test_hello(self):
        _, talk, _ = self.start(batch_size=32)
        expected = {"op": "hello", "v": 1, "job": "17", "pid": os.getpid(), "batch": 32}
        self.assertEqual(talk.hear(), {**expected, "caps": ["accum", "stop", "gate"]})

    def test_report_only(self):
        os.environ["TANDEM_ACCUM"] = "8"
        job, talk, _ = self.start(batch_size=32, accum=False)
        self.assertEqual(talk.hear()["caps"], ["stop", "gate"])
        talk.say({"op": "set", "accum": 4})
        talk.say({"op": "set", "gate_ms": 1})
        until(lambda: job.step() and job._gate_s > 0)
        self.assertEqual(job.accum, 1)
        self.assertEqual(len(list(job.split([1, 2, 3, 4]))), 1)

    def test_the_number_of_steps_in_all_is_reported_once_it_is_known(self):
        job, talk, _ = self.start()
        until(lambda: job.step() and job._reported[1] > 0)
        before, job.total = job._reported[1], 300
        until(lambda: job.step() and job._reported[1] > before)
        job.bye()
        _, *steps, _ = talk.hear_all()
        self.assertNotIn("total", steps[0])
        self.assertEqual(steps[-1]["total"], 300)

    def test_torch_gives_back_memory_when_the_sub_batches_change(self):
        cuda = unittest.mock.Mock()
        with unittest.mock.patch.dict("sys.modules", torch=unittest.mock.Mock(cuda=cuda)):
            job, talk, _ = self.start()
            job.step()
            cuda.empty_cache.assert_not_called()
            talk.say({"op": "set", "accum": 4})
            for _ in job.batches(range(1000)):
                list(job.split([1, 2, 3, 4]))
                time.sleep(0.001)
        cuda.empty_cache.assert_called_once()

    def test_steps_are_reported_at_most_every_10_ms(self):
        count = 0
        start = time.monotonic()
        job, talk, _ = self.start()
        while time.monotonic() - start < 0.2:
            for _ in job.batches([0] * 10):
                count += 1
        job.bye()
        seconds = time.monotonic() - start
        hello, *steps, bye = talk.hear_all()
        self.assertEqual(hello["op"], "hello")
        self.assertEqual(bye, {"op": "bye", "done": True})
        self.assertEqual({step["op"] for step in steps}, {"step"})
        self.assertEqual(steps[-1]["n"], count)
        self.assertLessEqual(len(steps), seconds / 0.01 + 1)
        self.assertGreater(len(steps), 1)
        before, told = 0, 0.0
        for step in steps:
            told += step["dt"] * (step["n"] - before)
            before = step["n"]
        self.assertLessEqual(told, seconds)
        self.assertGreater(told, seconds / 2)

    def test_values_go_with_the_next_report_once(self):
        job, talk, _ = self.start()
        job.report({"val/loss": 2}, loss=0.5, bad="low", none=None, nan=float("nan"))
        time.sleep(0.011)
        job.step()
        time.sleep(0.011)
        job.step()
        job.bye()
        _, first, *rest, _ = talk.hear_all()
        self.assertEqual(first["scalars"], {"val/loss": 2.0, "loss": 0.5})
        self.assertTrue(rest)
        self.assertTrue(all("scalars" not in step for step in rest))

    def test_settings_change_between_steps_only(self):
        job, talk, _ = self.start(batch_size=16)
        seen = []
        for index, batch in enumerate(job.batches([list(range(16))] * 30)):
            if index == 10:
                talk.say({"op": "set", "accum": 4})
            if index == 20:
                talk.say({"op": "set", "accum": 999})
            time.sleep(0.011)
            before = job.accum
            parts = [part for part, w in job.split(batch)]
            self.assertEqual(len(parts), before)
            self.assertEqual([x for part in parts for x in part], batch)
            self.assertEqual(job.accum, before)
            seen.append(len(parts))
        self.assertEqual(seen, [1] * 11 + [4] * 10 + [16] * 9)
        job.bye()
        told = [said["accum"] for said in talk.hear_all() if said["op"] == "step"]
        self.assertEqual(told, seen)

    def test_parts_at_first_come_from_the_environment(self):
        for text, parts in [("4", 4), ("99", 8), ("0", 1), ("-1", 1), ("many", 1), ("", 1)]:
            os.environ["TANDEM_ACCUM"] = text
            self.assertEqual(tandem.Job(batch_size=8).accum, parts, text)

    def test_stop(self):
        job, talk, _ = self.start()
        done = 0
        for _ in job.batches(range(1000000)):
            done += 1
            if done == 5:
                talk.say({"op": "stop"})
            time.sleep(0.001)
        self.assertTrue(job.stopping)
        self.assertLess(done, 1000)
        self.assertEqual(list(job.batches([1, 2, 3])), [])
        job.bye(done=not job.stopping)
        said = talk.hear_all()
        self.assertEqual(said[-1], {"op": "bye", "done": False})
        self.assertEqual(said[-2]["n"], done)
        job.bye(done=True)

    def test_loops_without_batches(self):
        job, talk, _ = self.start(steps_done=100)
        for index in range(1000000):
            if index == 3:
                talk.say({"op": "stop"})
            time.sleep(0.001)
            if not job.step():
                break
        self.assertTrue(job.stopping)
        self.assertGreater(job.steps, 100)

    def test_gate(self):
        job, talk, _ = self.start()
        talk.say({"op": "set", "gate_ms": 30})
        until(lambda: job.step() and job._gate_s > 0)
        start = time.monotonic()
        for _ in job.batches(range(5)):
            pass
        self.assertGreaterEqual(time.monotonic() - start, 0.15)
        # A gate without end ends with a stop.
        talk.say({"op": "set", "gate_ms": 10**400})
        talk.say({"op": "stop"})
        until(lambda: not job.step())

    def test_context_manager(self):
        job, talk, daemon = self.start()
        with job:
            job.step()
        self.assertEqual(talk.hear_all()[-1], {"op": "bye", "done": True})
        with self.assertRaises(KeyError), tandem.Job() as job:
            talk = self.accept(daemon)
            raise KeyError
        self.assertEqual([said["op"] for said in talk.hear_all()], ["hello"])

    def test_bad_lines_are_ignored(self):
        job, talk, _ = self.start(batch_size=16)
        too_long = b'{"op":"stop","x":"' + b"x" * 70000 + b'"}'
        deep = b"[" * 60000
        lines = [b"", b"hello?", b'{"op":"stop"', b"\xff\xfe\x00", b"[]", b"7", b"null"]
        lines += [b'{"op":7}', b'{"op":["stop"]}', b'{"op":"dance"}', too_long, deep]
        lines += [b'{"op":"set","accum":"4"}', b'{"op":"set","accum":true,"gate_ms":NaN}']
        lines += [b'{"op":"set","accum":null,"gate_ms":[1]}', b'{"op":"set","accum":2.5}']
        talk.connection.setblocking(False)
        data = b"\n".join(lines) + b'\n{"op":"set","acc'
        while data:
            try:
                data = data[talk.connection.send(data) :]
            except BlockingIOError:
                job.step()
        job.step()
        self.assertEqual((job.accum, job.stopping, job._gate_s), (1, False, 0))
        talk.send(b'um":4}\n')
        until(lambda: job.step() and job.accum == 4)
        talk.send(b'{"op":"set","accum":-3}\n')
        until(lambda: job.step() and job.accum == 1)
        self.assertFalse(job.stopping)

    def test_a_daemon_that_never_reads(self):
        job, talk, _ = self.start()
        start = time.monotonic()
        for _ in range(20000):
            job._steps += 1
            job._report(job._line)
        self.assertTrue(job._line._unsent or job._reported[1] < job.steps, "the buffer is full")
        self.assertLess(len(job._line._unsent), 200, "no more than a line is kept")
        self.assertLess(time.monotonic() - start, 10)
        held = job._reported[1]
        self.assertLess(held, job.steps)
        # Read at last: every line is whole, and the last report covers what was left out.
        talk.connection.settimeout(0.2)
        lines = [talk.hear()]
        while lines[-1].get("n") != job.steps:
            job._report(job._line)
            lines.append(talk.hear())
        numbers = [said["n"] for said in lines[1:]]
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_bye_does_not_wait_for_ever(self):
        job, _, _ = self.start()
        for _ in range(20000):
            job._steps += 1
            job._report(job._line)
        start = time.monotonic()
        job.bye()
        self.assertLess(time.monotonic() - start, 5)

    def test_a_daemon_that_goes_and_returns(self):
        self.addCleanup(setattr, _line, "RECONNECT_S", _line.RECONNECT_S)
        self.assertEqual(_line.RECONNECT_S, 2)
        _line.RECONNECT_S = 0.05
        job, talk, daemon = self.start(batch_size=16)
        talk.say({"op": "set", "accum": 4, "gate_ms": 1})
        until(lambda: job.step() and job.accum == 4)
        talk.close()
        daemon.vanish()
        for _ in range(20):
            self.assertTrue(job.step())
            time.sleep(0.011)
        self.assertEqual((job.accum, job._gate_s), (4, 0), "parts stay, the gate does not")
        daemon = self.daemon()
        until(lambda: job.step() and job._line.is_open)
        talk = self.accept(daemon)
        self.assertEqual(talk.hear()["op"], "hello")
        talk.say({"op": "stop"})
        until(lambda: not job.step())
        job.bye(done=False)
        self.assertEqual(talk.hear_all()[-1], {"op": "bye", "done": False})


class Alone(WithSocket):
    def check(self):
        job = tandem.Job(batch_size=4)
        batches = [([1, 2, 3, 4], [5, 6, 7, 8])] * 3
        seen = [part for x, y in job.batches(batches) for part in job.split(x, y)]
        self.assertEqual(seen, [([1, 2, 3, 4], [5, 6, 7, 8], 1.0)] * 3)
        self.assertEqual((job.accum, job.stopping, job.steps), (1, False, 3))
        self.assertTrue(job.step())
        job.bye(done=True)
        with job:
            pass

    def test_without_a_socket(self):
        del os.environ["TANDEM_SOCK"]
        self.check()

    def test_with_a_socket_that_is_none(self):
        for path in ["", "absent.sock", "/dev/null", "x" * 300, "\udcff"]:
            os.environ["TANDEM_SOCK"] = path
            self.check()


class Splitting(WithSocket):
    def job(self, accum, batch_size=64):
        os.environ["TANDEM_ACCUM"] = str(accum)
        return tandem.Job(batch_size=batch_size)

    def test_parts_make_up_the_batch(self):
        for size in [1, 2, 3, 7, 10, 64]:
            for accum in [1, 2, 3, 4, 7, 64]:
                batch = list(range(size))
                parts = list(self.job(accum).split(batch, batch))
                self.assertEqual(len(parts), min(accum, size))
                self.assertEqual([x for xs, _, _ in parts for x in xs], batch)
                for xs, ys, w in parts:
                    self.assertTrue(xs)
                    self.assertEqual(xs, ys)
                    self.assertEqual(w, len(xs) / size)
                self.assertAlmostEqual(sum(w for _, _, w in parts), 1.0, places=12)

    def test_an_empty_batch_is_one_part(self):
        self.assertEqual(list(self.job(4).split([])), [([], 1.0)])

    def test_nested(self):
        Pair = namedtuple("Pair", "a b")
        x = {"ids": [1, 2, 3, 4], "more": ([5, 6, 7, 8], Pair([1, 2, 3, 4], "abcd"))}
        parts = list(self.job(2).split(x))
        first = {"ids": [1, 2], "more": ([5, 6], Pair([1, 2], "ab"))}
        second = {"ids": [3, 4], "more": ([7, 8], Pair([3, 4], "cd"))}
        self.assertEqual(parts, [(first, 0.5), (second, 0.5)])

    def test_mistakes_of_the_caller_are_errors(self):
        with self.assertRaisesRegex(ValueError, "different lengths"):
            list(self.job(2).split([1, 2], [1, 2, 3]))
        with self.assertRaises(TypeError):
            list(self.job(2).split())

    def test_losses_and_gradients_add_up(self):
        """Linear regression by hand: the parts give what the batch gives."""

        def loss_and_gradient(weights, xs, ys):
            loss, gradient = 0.0, [0.0] * len(weights)
            for x, y in zip(xs, ys):
                error = sum(w * value for w, value in zip(weights, x)) - y
                loss += error * error / len(xs)
                for index, value in enumerate(x):
                    gradient[index] += 2 * error * value / len(xs)
            return loss, gradient

        def train(accums):
            weights, losses = [0.0, 0.0, 0.0], []
            for step, accum in enumerate(accums):
                x = [[((step + i * k) % 11) / 11 for k in (1, 3, 5)] for i in range(13)]
                y = [2 * a - b + 0.5 * c for a, b, c in x]
                loss, gradient = 0.0, [0.0] * 3
                for xs, ys, w in self.job(accum, 13).split(x, y):
                    part, slope = loss_and_gradient(weights, xs, ys)
                    loss += part * w
                    gradient = [g + s * w for g, s in zip(gradient, slope)]
                weights = [w - 0.1 * g for w, g in zip(weights, gradient)]
                losses.append(loss)
            return losses

        whole = train([1] * 50)
        self.assertLess(whole[-1], whole[0] / 10)
        for accums in [[4] * 50, [13] * 50, [1] * 15 + [4] * 20 + [1] * 15]:
            for found, expected in zip(train(accums), whole):
                self.assertAlmostEqual(found, expected, places=12)


if __name__ == "__main__":
    unittest.main()
