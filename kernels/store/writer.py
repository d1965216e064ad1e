"""The one thread of a process that writes to the store: change after change, each kept until it is on the disk."""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kernels.store.database import LOG, Database, is_corrupt, is_trouble, why

Change = Callable[[sqlite3.Connection], None]

# Changes that wait while the file can't be written; then the oldest are given up, and counted.
MOST_WAITING = 1000

# Seconds that a caller waits for its change; while the file is in trouble, less: its result need not wait for that.
_PATIENCE_S, _IN_TROUBLE_S = 3.0, 0.05

# Seconds between two tries to write what waits.
_RETRY_S = 1.0


def _nothing(_: sqlite3.Connection) -> None:
    """A change that changes nothing."""


@dataclass(eq=False)
class _Waiting:
    change: Change
    is_written: bool = False
    is_over: threading.Event = field(default_factory=threading.Event)


class Writer:
    """Changes in the order in which they came.

    Attributes:
        trouble: why the last try failed, in words; "" where it did not.
        given_up: changes that are lost: too many waited, or they could not be carried out.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._line: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self.trouble = ""
        self.given_up = 0

    @property
    def waiting(self) -> int:
        """Changes that are not on the disk yet."""
        return sum(one.change is not _nothing for one in list(self._line))

    def write(self, change: Change) -> bool:
        """Carry out a change in a transaction of its own. Waits a while; what is not written then is tried again.

        Returns:
            Whether it is on the disk.
        """
        waiting = self._lined_up(change)
        waiting.is_over.wait(_IN_TROUBLE_S if self.trouble else _PATIENCE_S)
        return waiting.is_written

    def failed(self, error: BaseException) -> None:
        """Note why the file can't be written; each new reason goes to the log."""
        told, self.trouble = self.trouble, why(error)
        if self.trouble != told:
            LOG.warning("What is measured is not stored in %s: %s.", self._database.path, self.trouble)

    def keep_trying(self) -> None:
        """Open the file as soon as that can be done, though nothing waits for it: until then there is trouble."""
        self._lined_up(_nothing)

    def close(self) -> None:
        """Try once more to write what waits, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE_S)
        if self.waiting:
            LOG.warning("%d results were not stored in %s: %s.", self.waiting, self._database.path, self.trouble)

    def _lined_up(self, change: Change) -> _Waiting:
        """A change at the end of the line; over at once where the writer is closed."""
        waiting = _Waiting(change)
        with self._changed:
            if self._is_closed:
                waiting.is_over.set()
                return waiting
            self._line.append(waiting)
            if len(self._line) > MOST_WAITING:
                self._line.popleft()
                self.given_up += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="store", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return waiting

    def _work(self) -> None:
        while (first := self._next()) is not None:
            is_last_try = self._is_closed
            try:
                self._carry_out(first.change)
            except Exception as error:
                self._disconnect()
                if not is_trouble(error):  # what can't be carried out must not hold up the others
                    LOG.exception("A result was not stored.")
                    self.given_up += 1
                    self._over(first, is_written=False)
                elif not self._aside(error):
                    self.failed(error)
                    if is_last_try:
                        break
                    self._pause()
            else:
                self.trouble = ""
                self._over(first, is_written=True)
        self._disconnect()

    def _next(self) -> _Waiting | None:
        """The change that came first; None once there is none and the writer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._line or self._is_closed)
            return self._line[0] if self._line else None

    def _carry_out(self, change: Change) -> None:
        if self._connection is not None and self._database.is_moved(self._connection):
            self._disconnect()
        if self._connection is None:
            self._connection = self._database.writer()
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            change(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _aside(self, error: BaseException) -> bool:
        """Whether the file was corrupt, and has been set aside: then the change is tried again at once."""
        if not is_corrupt(error):
            return False
        try:
            self._database.move_aside()
        except OSError:
            return False
        return True

    def _pause(self) -> None:
        """Wait before the next try, unless the writer is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, _RETRY_S)

    def _over(self, waiting: _Waiting, is_written: bool) -> None:
        with self._changed:
            if self._line and self._line[0] is waiting:
                self._line.popleft()
        waiting.is_written = is_written
        waiting.is_over.set()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
