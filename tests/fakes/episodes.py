"""Environments for tests. Workers import this file by its path."""

import asyncio
import os
import random
import subprocess
import sys
import time

from oncurve.environments import Episode, Reply

SAID = ("higher", "lower", "<eos>no<bos>")


class Guess(Episode):
    """Ends after a number of turns that its row and its seed decide; rewards what is written by its length."""

    def start(self, row, prompt):
        self.left = random.randrange(1, 4) + row.get("more", 0)
        self.sum = 0.0
        return f" {self.left}?" if self.left % 2 else None

    def reply(self, text, calls):
        self.left -= 1
        reward = len(text) / 8 + random.random()
        self.sum += reward
        if not self.left:
            return Reply(reward=reward, done=True)
        return Reply([{"role": "user", "content": f"{random.choice(SAID)} {self.left}"}], reward=reward)

    def score(self):
        return self.sum / 2


class Broken(Guess):
    """Fails in the way that its row names, in its second turn; all other rows go on as if nothing were wrong."""

    def start(self, row, prompt):
        self.how = row.get("how")
        if self.how == "start":
            raise ValueError("it does not begin")
        if self.how == "no text":
            return 7
        said = super().start({"more": 2}, prompt)
        self.first = self.left
        return said

    def reply(self, text, calls):
        if self.left < self.first:
            self._fail()
        return super().reply(text, calls)

    def _fail(self):
        if self.how == "raises":
            raise RuntimeError("it is broken")
        if self.how == "exits":
            sys.exit(3)
        if self.how == "dies":
            os._exit(4)
        if self.how == "hangs":
            time.sleep(3600)
        if self.how == "forks":
            subprocess.Popen(["sleep", "3600"])
            os._exit(5)
        if self.how == "prints":
            sys.stdout.write("x" * 100_000)
            sys.stderr.write("\033[2J" * 100)
        if self.how == "memory":
            bytearray(1 << 40)

    def score(self):
        if self.how == "score":
            raise RuntimeError("no score")
        if self.how == "bad score":
            return "much"
        return super().score()


class Odd(Guess):
    """Replies with things that are no reply, as its row names."""

    def start(self, row, prompt):
        self.how = row.get("how")
        return super().start({"more": 2}, prompt)

    def reply(self, text, calls):
        odd = {
            "none": None,
            "huge": Reply([{"role": "user", "content": "x" * 1_000_000}]),
            "no role": Reply([{"content": "x"}]),
            "number": Reply([{"role": "user", "content": 3}]),
            "image": Reply([{"role": "user", "content": [{"type": "image", "url": "x"}]}]),
            "nan": Reply([{"role": "user", "content": "x"}], reward=float("nan")),
            "reward": Reply([{"role": "user", "content": "x"}], reward="many"),
        }
        return odd[self.how] if self.how in odd else super().reply(text, calls)


class Deadly(Guess):
    """Kills its own worker, once in a whole test: the first of them to find the file gone makes it."""

    def reply(self, text, calls):
        place = os.environ["ONCURVE_DEADLY"]
        if self.left == 1 and not os.path.exists(place):
            open(place, "w").close()
            os.kill(os.getpid(), 9)
        return super().reply(text, calls)


class Forgetful(Guess):
    """Says something else each time, whatever its seed."""

    def reply(self, text, calls):
        random.seed()
        return super().reply(text, calls)


class Meeting(Guess):
    """Its coroutines wait for each other: the first reply ends when as many have begun as its row says. The draws of
    each are its own, whatever the others draw in between.
    """

    begun = 0

    async def start(self, row, prompt):
        self.meets, self.sum, self.turns = row["meets"], 0.0, 0

    async def reply(self, text, calls):
        self.turns += 1
        Meeting.begun += self.turns == 1
        first = random.random()
        while Meeting.begun < self.meets:
            await asyncio.sleep(0.001)
        (second,) = await asyncio.gather(self._later())
        return Reply([{"role": "user", "content": f"{first:.3f} {second:.3f}"}])

    async def _later(self):
        await asyncio.sleep(0)
        return random.random()


class Late(Episode):
    """The even rows wait in their first turn until the odd ones have been decoded twice."""

    replies = 0

    async def start(self, row, prompt):
        self.waits, self.turn = row["number"] % 2 == 0, 0

    async def reply(self, text, calls):
        self.turn += 1
        Late.replies += not self.waits and self.turn == 2
        while self.waits and Late.replies < 2:
            await asyncio.sleep(0.001)
        return Reply([{"role": "user", "content": " ."}], done=self.turn == 3)


class BrokenLater(Broken):
    """Fails in the same ways, in coroutines."""

    async def start(self, row, prompt):
        return super().start(row, prompt)

    async def reply(self, text, calls):
        await asyncio.sleep(0)
        if self.how == "hangs" and self.left < self.first:
            await asyncio.sleep(3600)
        return super().reply(text, calls)

    async def score(self):
        return super().score()
