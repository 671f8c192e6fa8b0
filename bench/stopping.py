"""Being asked to stop: SIGTERM as an exception, so that a run ends in good order with its files kept."""

import signal
from collections.abc import Callable
from typing import Any


class Interrupted(BaseException):
    """The process was asked to stop."""


class stoppable:
    """While inside, SIGTERM raises `Interrupted` at once."""

    def __enter__(self) -> None:
        def stop(signum: int, frame: Any) -> None:
            raise Interrupted

        self.before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, stop)

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self.before)
