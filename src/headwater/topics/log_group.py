"""Group commit: what many threads append meanwhile is stored by whoever comes first, in one go."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.topics.log import Append, LogAck
from headwater.topics.log_tables import Prepared

GROUP_BYTES = 64 * 1024**2

Outcome = LogAck | HeadwaterError


@dataclass(slots=True)
class _Waiting:
    prepared: Prepared
    outcome: Outcome | None = None


class GroupCommit:
    """`commit` stores a group and says what became of each; `named` tells users of what it raises."""

    def __init__(
        self,
        commit: Callable[[Sequence[Prepared]], list[Outcome]],
        named: Callable[[BaseException], HeadwaterError],
    ) -> None:
        self.lock = threading.Lock()
        self._commit = commit
        self._named = named
        self._queue: deque[_Waiting] = deque()

    def append(self, request: Append) -> LogAck:
        """Store the request with whatever else waits: who gets the lock commits for all, others find it done."""
        waiting = _Waiting(Prepared.of(request))
        self._queue.append(waiting)
        try:
            with self.lock:
                while waiting.outcome is None:
                    self._store(self._group())
        finally:
            if waiting.outcome is None:  # interrupted while it waited: nobody is to store it later
                with suppress(ValueError):
                    self._queue.remove(waiting)
        if isinstance(waiting.outcome, LogAck):
            return waiting.outcome
        raise waiting.outcome

    def _group(self) -> list[_Waiting]:
        """What waits, in order, up to a number of bytes."""
        group, size = [self._queue.popleft()], 0
        while self._queue and size < GROUP_BYTES:
            group.append(self._queue.popleft())
            size += group[-1].prepared.bytes
        return group

    def _store(self, group: list[_Waiting]) -> None:
        outcomes: list[Outcome] = []
        try:
            outcomes = self._commit([waiting.prepared for waiting in group])
        except BaseException as failed:
            outcomes = [failed if isinstance(failed, HeadwaterError) else self._named(failed)] * len(group)
            if not isinstance(failed, Exception):
                raise
        finally:  # also when interrupted: whoever waits must learn of it
            for waiting, outcome in zip(group, outcomes, strict=True):
                waiting.outcome = outcome
