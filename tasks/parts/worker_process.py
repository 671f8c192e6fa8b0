"""The worker's side of `tasks.parts.workers`: read a request, call the function, write the reply, until nobody asks.

A message is its length in 8 bytes and a pickle.
"""

import contextlib
import importlib
import operator
import os
import pickle
import queue
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from select import select
from typing import Any

from tasks.parts.resident import peak_resident_bytes

OUT_OF_MEMORY = 77
"""Exit status of a worker whose call raised MemoryError."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20
_MAX_REPLY_BYTES = 1 << 26
_MAX_ERROR_CHARS = 1000
_LOOK_SECONDS = 1.0
"""How often a worker looks whether its parent is still the same."""
_CPU_SECONDS = 3.0
"""Processor time of a call beyond twice its limit, after which the kernel ends it: the parent should have."""


def serve(parent: int, memory_bytes: int, function: str) -> None:
    """Answer requests until the parent closes the pipe or is gone.

    The pipes move away from descriptors 0, 1 and 2, so that a function may print and read as it likes.
    """
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    sys.argv[:] = sys.argv[:1]
    _set_limit(resource.RLIMIT_CORE, 0)
    if memory_bytes:
        _set_limit(resource.RLIMIT_AS, memory_bytes)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, parent, inbox), daemon=True).start()
    try:
        place, _, name = function.partition(":")
        module = importlib.import_module(place)
        call = operator.attrgetter(name)(module)
        getattr(module, "prepare_worker", _nothing)()
        write(replies, (None, None, False))
    except BaseException as error:
        write(replies, (None, described(error), False))
        return
    while True:
        write_reply(replies, inbox.get(), call, memory_bytes)


def _nothing() -> None:
    """What a module without `prepare_worker` does before the first call."""


def write_reply(replies: int, request: bytes, call: Callable[..., Any], memory_bytes: int) -> None:
    """Write (value, error text, whether this process has grown so much that it should be replaced)."""
    try:
        limit_seconds, arguments = pickle.loads(request)
        _set_limit(resource.RLIMIT_CPU, int(time.process_time() + 2 * limit_seconds + _CPU_SECONDS))
        value = call(*arguments)
        # The peak: what the caches of one call hold must not count against another.
        tired = bool(memory_bytes) and _peak_bytes() > memory_bytes / 2
        reply = packed((value, None, tired))
        if len(reply) > _MAX_REPLY_BYTES:
            raise ValueError(f"the result takes {len(reply)} bytes, at most {_MAX_REPLY_BYTES} are passed on")
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException as error:
        reply = packed((None, described(error), False))
    _write_all(replies, reply)


def _peak_bytes() -> int:
    """The largest resident set of this process; where only `getrusage` tells it, in KiB but for macOS."""
    told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak_resident_bytes() or told


def write(file: int, content: object) -> None:
    """Write one message."""
    _write_all(file, packed(content))


def packed(content: object) -> bytes:
    """One message."""
    data = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def take_message(buffer: bytearray) -> bytes | None:
    """Take the first message's pickle out of a buffer; None where it is not there in full."""
    if len(buffer) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
    if len(buffer) < end:
        return None
    message = bytes(buffer[_LENGTH.size : end])
    del buffer[:end]
    return message


def described(error: BaseException) -> str:
    """Type and text of an exception."""
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    # A lone surrogate would fail later, wherever the text is written.
    text = f"{type(error).__name__}: {text}"[:_MAX_ERROR_CHARS].removesuffix(": ")
    return text.encode("utf-8", "backslashreplace").decode()


def death(status: int) -> str:
    """What a status (as `Popen.returncode`) says of how a worker ended."""
    if status == OUT_OF_MEMORY:
        return "MemoryError: the worker's memory bound"
    if status < 0:
        return f"the worker was killed by {signal.Signals(-status).name}"
    return f"the worker ended with status {status}"


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _set_limit(which: int, value: int) -> None:
    """Lower a soft limit, or raise it again as far as the hard limit lets us."""
    _, hard = resource.getrlimit(which)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _listen(requests: int, parent: int, inbox: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on, and end the process, busy or not, when the parent has closed the pipe or died.

    The parent is looked at too, because a process that it forked may hold the pipe open.
    """
    buffer = bytearray()
    while True:
        if not select([requests], [], [], _LOOK_SECONDS)[0]:
            if os.getppid() != parent:
                os._exit(0)
            continue
        chunk = os.read(requests, _CHUNK)
        if not chunk:
            os._exit(0)
        buffer += chunk
        message = take_message(buffer)
        if message is not None:
            inbox.put(message)
