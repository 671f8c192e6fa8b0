"""Being asked to stop: SIGTERM, or a closed terminal, as an exception, so that a run ends with its files kept."""

import signal
from typing import Any

_SECONDS_UNTIL_AGAIN = 5.0


class Interrupted(BaseException):
    """The process was asked to stop."""


class stoppable:
    """While inside, SIGTERM and SIGHUP raise `Interrupted` at once.

    Python swallows an exception that comes while it calls back from the end of an object, so it comes again until the
    block is left.
    """

    def __enter__(self) -> None:
        def stop(signum: int, frame: Any) -> None:
            signal.setitimer(signal.ITIMER_REAL, _SECONDS_UNTIL_AGAIN)
            raise Interrupted

        # nohup ignores SIGHUP, and that stays.
        hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else []
        numbers = [signal.SIGTERM, signal.SIGALRM, *hangup]
        self.before = {number: signal.signal(number, stop) for number in numbers}

    def __exit__(self, *exception: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self.before.items():
            signal.signal(number, handler)
