from tandem.policy import Policy


class Fails(Policy):
    def plan(self, draft):
        if draft.now > 0:
            raise KeyError("a mistake")
        for job in draft.waiting:
            draft.place(job)


class PlacesTwice(Policy):
    def plan(self, draft):
        for job in draft.waiting:
            draft.place(job)
            draft.place(job)


class Silent(Policy):
    def plan(self, draft):
        pass


class Exits(Policy):
    def plan(self, draft):
        raise SystemExit(0)


class Prints(Policy):
    def plan(self, draft):
        print("words of the policy")
        for job in draft.waiting:
            draft.place(job)


class NeedsMore(Policy):
    def __init__(self, number):
        if not isinstance(number, int):
            raise ValueError("number is a whole number")


class NotAPolicy:
    pass
