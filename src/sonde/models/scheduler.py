"""One scheduler owns a model: whoever asks, requests meet in its batches and hooks never do.

Requests that wait together run together. The work happens in one thread of its own, so an event loop is never
blocked; a request that makes a batch fail is found by running the batch's requests one by one.
"""

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures

from sonde.core import errors
from sonde.models import requests, workers

#: After a batch of several, wait this long for stragglers of the same wave, in seconds.
GATHER = 0.02


class Scheduler:
    """Queues requests and runs them in batches."""

    def __init__(
        self,
        run: Callable[[Sequence[requests.Item], int | None], list[requests.Outcome]],
        group: Callable[[requests.Request], Hashable],
        *,
        max_batch: int,
    ) -> None:
        """Starts no thread yet.

        Args:
            run: Runs one batch, for so many tokens, or to its end.
            group: Only requests with equal groups share a batch.
            max_batch: Rows in a batch at most.
        """
        self._run, self._group, self._max_batch = run, group, max_batch
        self._pending: list[_Waiting] = []
        self._arrived = threading.Condition()
        self._executor: futures.ThreadPoolExecutor | None = None
        self._last_size = 1
        self._running: list[requests.Request] = []
        self._closed = False

    def submit(
        self, batch: Sequence[requests.Item], limit: int | None = None
    ) -> list["futures.Future[requests.Outcome]"]:
        """Queues requests that may share a batch; the futures resolve when they are answered, or paused at the limit."""
        answers: list[futures.Future[requests.Outcome]] = [futures.Future() for _ in batch]
        workers.release()
        with self._arrived:
            self.check_open()
            self._pending += [_Waiting(item, answer, limit) for item, answer in zip(batch, answers, strict=True)]
            self._arrived.notify_all()
            if self._executor is None:
                self._executor = futures.ThreadPoolExecutor(1, thread_name_prefix="sonde-engine")
            self._executor.submit(self._drain)
            self._executor.submit(workers.release)  # apart, so that an idle engine holds on to nothing meanwhile
        return answers

    def check_open(self) -> None:
        """Refuses to go on after `close`."""
        if self._closed:
            raise errors.ModelError("the model is closed: load it again")

    def close(self) -> None:
        """Takes no more requests; cancels what waits and lets what runs end at its next token."""
        with self._arrived:
            self._closed = True
            waiting, self._pending = self._pending, []
            for request in self._running:
                request.cancelled.set()
        for one in waiting:
            one.request.cancelled.set()
            one.answer.cancel()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def _drain(self) -> None:
        while self._drain_one():
            pass

    def _drain_one(self) -> bool:
        """Runs one batch; says whether there was any."""
        self._gather()
        with self._arrived:
            if not self._pending:
                return False
            group, limit = self._group(self._pending[0].request), self._pending[0].limit
            same = [one for one in self._pending if self._group(one.request) == group and one.limit == limit]
            batch = same[: self._max_batch]
            taken = {id(one) for one in batch}
            self._pending = [one for one in self._pending if id(one) not in taken]
            batch = [one for one in batch if one.answer.set_running_or_notify_cancel()]
            self._running = [one.request for one in batch]
        if batch:
            self._last_size = len(batch)
            self._answer(batch)
        self._running = []
        return True

    def _gather(self) -> None:
        """Waits a moment for the rest of a wave, if the last batch was one."""
        with self._arrived:
            while 0 < len(self._pending) < min(self._last_size, self._max_batch):
                if not self._arrived.wait(GATHER):
                    return

    def _answer(self, batch: Sequence["_Waiting"]) -> None:
        try:
            outcomes: Sequence[requests.Outcome | BaseException] = self._run(
                [one.item for one in batch], batch[0].limit
            )
        except requests.BatchError as failed:
            outcomes = failed.outcomes
        except BaseException as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for one in batch:
                self._answer([one])
            return
        for one, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                one.answer.set_exception(outcome)
            else:
                one.answer.set_result(outcome)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """Something to run, and who waits for it."""

    item: requests.Item
    answer: "futures.Future[requests.Outcome]"
    limit: int | None

    @property
    def request(self) -> requests.Request:
        return self.item.request if isinstance(self.item, requests.Paused) else self.item
