"""A pytest that starts at once: reads lines of test files from its input, runs each in a fork, writes exit statuses.

The slow imports are done once, and none of them is the code under test.
"""

import os
import signal
import sys

import beartype  # noqa: F401  # pyright: ignore[reportUnusedImport]
import jaxtyping  # noqa: F401  # pyright: ignore[reportUnusedImport]
import pydantic.dataclasses  # noqa: F401  # pyright: ignore[reportUnusedImport]
import pytest
import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport]

SECONDS = 60
"""A mutation that makes a test hang counts as caught."""


def run(files: list[str]) -> int:
    """Exit status of pytest on some files in a process of its own; negative where a signal ended it."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(SECONDS)
    os.dup2(2, 1)
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *files])
    sys.stdout.flush()
    os._exit(int(status))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        print(run(line.split()), flush=True)
