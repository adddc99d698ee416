"""One scheduler owns a model: whoever asks, requests meet in its batches and hooks never do.

Requests that wait together run together. The work happens in one thread of its own, so an event loop is never
blocked; a request that makes a batch fail is found by running the batch's requests one by one.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent import futures

from sonde.core import errors
from sonde.models import requests

#: After a batch of several, wait this long for stragglers of the same wave, in seconds.
GATHER = 0.02


class Scheduler:
    """Queues requests and runs them in batches."""

    def __init__(
        self,
        run: Callable[[Sequence[requests.Request]], list[requests.Generation]],
        group: Callable[[requests.Request], Hashable],
        *,
        max_batch: int,
    ) -> None:
        """Starts no thread yet.

        Args:
            run: Runs one batch.
            group: Only requests with equal groups share a batch.
            max_batch: Rows in a batch at most.
        """
        self._run, self._group, self._max_batch = run, group, max_batch
        self._pending: list[tuple[requests.Request, futures.Future[requests.Generation]]] = []
        self._arrived = threading.Condition()
        self._executor: futures.ThreadPoolExecutor | None = None
        self._last_size = 1
        self._running: list[requests.Request] = []
        self._closed = False

    def submit(self, batch: Sequence[requests.Request]) -> list["futures.Future[requests.Generation]"]:
        """Queues requests that may share a batch; the futures resolve when they are answered."""
        answers: list[futures.Future[requests.Generation]] = [futures.Future() for _ in batch]
        with self._arrived:
            if self._closed:
                raise errors.ModelError("the model is closed: load it again")
            self._pending += zip(batch, answers, strict=True)
            self._arrived.notify_all()
            if self._executor is None:
                self._executor = futures.ThreadPoolExecutor(1, thread_name_prefix="sonde-engine")
            self._executor.submit(self._drain)
        return answers

    def close(self) -> None:
        """Takes no more requests; cancels what waits and lets what runs end at its next token."""
        with self._arrived:
            self._closed = True
            waiting, self._pending = self._pending, []
            for request in self._running:
                request.cancelled.set()
        for request, answer in waiting:
            request.cancelled.set()
            answer.cancel()
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
            group = self._group(self._pending[0][0])
            batch = [pair for pair in self._pending if self._group(pair[0]) == group][: self._max_batch]
            taken = {id(pair[1]) for pair in batch}
            self._pending = [pair for pair in self._pending if id(pair[1]) not in taken]
            batch = [pair for pair in batch if pair[1].set_running_or_notify_cancel()]
            self._running = [request for request, _ in batch]
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

    def _answer(self, batch: Sequence[tuple[requests.Request, "futures.Future[requests.Generation]"]]) -> None:
        try:
            for (_, answer), generation in zip(batch, self._run([request for request, _ in batch]), strict=True):
                answer.set_result(generation)
        except requests.BatchError as failed:
            for (_, answer), outcome in zip(batch, failed.outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
        except BaseException as error:
            if len(batch) == 1:
                batch[0][1].set_exception(error)
                return
            for pair in batch:
                if not pair[1].done():
                    self._answer([pair])
