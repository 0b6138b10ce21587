"""A work queue: every job is done exactly once, though one worker dies during its job and another one stalls.

A job is a key. A worker claims it by writing its name into it, on condition that the job is unchanged since
the worker read it; it finishes the job by a transaction that writes the result and removes the job, on
condition that its claim still stands. So two workers may work on one job, but only one of them can finish it.
A worker takes over a claim that has not changed for a while, by its own clock: no clocks are compared, and
the death of a worker needs no detection.

The program uses asyncio. Workers wait for changes of the queue instead of polling.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import wbkv

JOBS, DONE = "queue/jobs/", "queue/done/"
PATIENCE_S = 0.5


class Worker:
    """A worker, which takes jobs until there are none."""

    def __init__(self, client: wbkv.aio.Client[Any], name: str) -> None:
        self.client = client
        self.name = name
        self.finished = 0
        self._seen: dict[bytes, tuple[int, float]] = {}  # a job's revision, and when we first saw it

    async def run(self) -> None:
        """Work. When other workers have all jobs, wait for a change, or until a claim is old."""
        async with self.client.watch(JOBS) as changes:
            while jobs := [job async for job in self.client.scan(JOBS)]:
                for job in jobs:
                    claim = await self.claim(job)
                    if claim is not None:
                        await self.work(job, claim)
                        break
                else:
                    await changes.next(PATIENCE_S)

    async def claim(self, job: wbkv.Entry[Any]) -> int | None:
        """Claim a job, if it is free. Returns the claim's revision, or None."""
        if not self.is_free(job):
            return None
        done = await (
            self.client.txn()
            .when(wbkv.mod_revision(job.key) == job.mod_revision)
            .then(wbkv.put(job.key, job.value | {"worker": self.name}))
            .commit()
        )
        return done.revision if done.succeeded else None

    def is_free(self, job: wbkv.Entry[Any]) -> bool:
        """Whether no worker claims the job, or a claim is too old."""
        if job.value["worker"] is None:
            return True
        now = time.monotonic()
        revision, since = self._seen.get(job.key, (0, now))
        if revision != job.mod_revision:
            self._seen[job.key] = (job.mod_revision, now)
            return False
        return now - since > PATIENCE_S

    async def work(self, job: wbkv.Entry[Any], claim: int) -> None:
        """Do the job: here, add up some numbers."""
        if await self.finish(job, claim, sum(job.value["numbers"])):
            self.finished += 1

    async def finish(self, job: wbkv.Entry[Any], claim: int, result: int) -> bool:
        """File the result, unless another worker has claimed the job."""
        name = job.name.removeprefix(JOBS)
        done = await (
            self.client.txn()
            .when(wbkv.mod_revision(job.key) == claim)
            .then(
                wbkv.put(DONE + name, {"result": result, "worker": self.name}),
                wbkv.add(f"queue/times/{name}"),  # to show that it happens once
                wbkv.delete(job.key),
            )
            .commit()
        )
        return done.succeeded


async def main(queue: wbkv.aio.Client[Any]) -> None:
    """Fill the queue, and run workers, one of which dies and one of which stalls."""
    await queue.delete(wbkv.prefix("queue/"))
    jobs = {f"{number:02}": [number, number + 1] for number in range(12)}
    todo = [wbkv.put(JOBS + name, {"numbers": numbers, "worker": None}) for name, numbers in jobs.items()]
    await queue.txn().then(*todo).commit()

    # Two workers claim a job each. One dies, the other one stalls.
    dying, stalling = Worker(queue, "dying"), Worker(queue, "stalling")
    first, second = [job async for job in queue.scan(JOBS, limit=2)]
    assert await dying.claim(first) is not None
    late = await stalling.claim(second)
    assert late is not None

    workers = [Worker(queue, name) for name in ("ann", "ben", "cem")]
    await asyncio.gather(*(worker.run() for worker in workers))
    assert not await stalling.finish(second, late, 0), "a job was finished twice"
    print(f"{stalling.name} came too late with {second.name}: rejected")

    for name, numbers in jobs.items():
        done = await queue.get(DONE + name)
        assert done is not None, f"job {name} was lost"
        assert done["result"] == sum(numbers), f"the result of job {name} is {done['result']}"
        assert await queue.get(f"queue/times/{name}") == 1, f"job {name} was done again"
    for worker in workers:
        print(f"{worker.name} has done {worker.finished} jobs")
    assert sum(worker.finished for worker in workers) == len(jobs)
    print(f"all {len(jobs)} jobs done, each exactly once")


async def start() -> None:
    """Run the example on the store that the command line names."""
    begin = wbkv.aio.open if sys.argv[1:] == ["--embedded"] else wbkv.aio.connect
    async with begin(codec=wbkv.codecs.JSON) as store:
        await main(store)


if __name__ == "__main__":
    asyncio.run(start())
