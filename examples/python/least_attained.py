"""Least attained service with sharing: the example of docs/developers/add-a-policy.md in Python."""

from tandem.policy import Policy


def level(job):
    """Attained GPU time in powers of two, so that about equal jobs do not preempt each other."""
    return int(job.attained_s).bit_length()


class LeastAttained(Policy):
    def __init__(self, interval_s=300, rates_min=1.3):
        self.interval_s, self.rates_min, self.review = interval_s, rates_min, 0

    def plan(self, draft):
        if draft.waiting and draft.now >= self.review:
            self.review = draft.now + self.interval_s
            self.preempt(draft, min(draft.waiting, key=level))
        for job in sorted(draft.waiting, key=level):
            if not draft.place(job):
                self.pair(draft, job)
        if draft.waiting:
            draft.wake_in(self.review - draft.now)

    def preempt(self, draft, first):
        """Drops jobs that have attained more and run alone, until the first job may find room."""
        for job in sorted(draft.running, key=level, reverse=True):
            if draft.free >= first.gpus or level(job) <= level(first):
                return
            if job.stoppable and not job.beside:
                draft.drop(job)

    def pair(self, draft, job):
        """Joins the running job with which the rates add up to most, if that is enough."""
        hosts = [host for host in draft.running if host.gpus == job.gpus and not host.beside]
        rated = [(sum(draft.rates(job, host) or [0]), host) for host in hosts]
        for rates, host in sorted(rated, key=lambda pair: pair[0], reverse=True):
            if rates > self.rates_min and draft.share(job, host):
                return
