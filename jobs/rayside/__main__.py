"""What only a Ray driver can do, as requests: ``python -m jobs.rayside --address HOST:PORT`` of the head's GCS.

NDJSON. On standard output first ``{"ready": {"ray": "2.60.0", "session": "session_…"}}``, or ``{"failed": "sentence"}``
and exit code 1. Then for each ``{"id": 7, "do": "hold", …}`` on standard input ``{"id": 7, "ok": …}``, ``{"id": 7,
"error": "sentence"}`` (it makes no sense), ``{"id": 7, "failed": "sentence"}`` (Ray could not) or ``{"id": 7, "stale":
"sentence"}`` (Ray's head is not the one that this process knows: another process is to be asked). Answers may come in
another order. It ends with its standard input.

Whoever asks sets the limits, and kills this process when it hangs.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jobs.raymodel import one_line
from jobs.rayside.values import AnotherHead, Mistake, RayFailed

log = logging.getLogger("jobs.rayside")

EXIT_FAILED = 1
END_SECONDS = 2.0
"""How long what is being done when the input ends may still take."""
LISTEN_SECONDS = 5.0
"""So long the head has to take a connection; Ray itself tries for minutes where nobody is."""
ASIDE = frozenset({"machine_ids"})
"""What may take long for a node's sake: everything else does not wait for it."""

Say = Callable[[Mapping[str, Any]], None]
Call = Callable[..., Any]


def lines_until_end(stream: Iterable[str]) -> queue.SimpleQueue[str | None]:
    """Brings the lines, and None at the end; shortly after that the process ends, whatever it hangs in."""
    waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            waiting.put(line)
        waiting.put(None)
        time.sleep(END_SECONDS)
        os._exit(0)

    threading.Thread(target=read, name="requests", daemon=True).start()
    return waiting


def answer(calls: Mapping[str, Call], request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked for, and tell what came of it."""
    number, do = request["id"], request["do"]
    call = calls.get(do)
    if call is None:
        return {"id": number, "error": f"{do!r} is nothing that can be asked for here"}
    what = {name: value for name, value in request.items() if name not in ("id", "do")}
    try:
        return {"id": number, "ok": call(**what)}
    except Mistake as error:
        return {"id": number, "error": str(error)}
    except AnotherHead as error:
        return {"id": number, "stale": str(error)}
    except RayFailed as error:
        log.warning("%s: %s", do, error)
        return {"id": number, "failed": str(error)}
    except Exception as error:
        # The boundary of a request: the next one may go well.
        log.warning("%s failed", do, exc_info=True)
        return {"id": number, "failed": _words(error)}


def serve(calls: Mapping[str, Call], next_line: Callable[[], str | None], say: Say) -> None:
    """Answer until the input ends."""

    def carry_out(request: Mapping[str, Any]) -> None:
        say(answer(calls, request))

    while (line := next_line()) is not None:
        request = json.loads(line)
        if request["do"] in ASIDE:
            threading.Thread(target=carry_out, args=(request,), name=request["do"], daemon=True).start()
        else:
            carry_out(request)


def main(arguments: list[str]) -> int:
    """Connect, then answer until the input ends; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m jobs.rayside", description="The controller's hand in Ray")
    parser.add_argument("--address", required=True, help="host:port of the head's GCS")
    parser.add_argument("--watch", action="store_true", help="keep a probe on nodes, see jobs.rayside.watching")
    options = parser.parse_args(arguments)
    address: str = options.address
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    # What Ray prints must not stand between the answers.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    said = threading.Lock()

    def say(told: Mapping[str, Any]) -> None:
        with said:
            out.write(json.dumps(told) + "\n")

    waiting = lines_until_end(sys.stdin)
    try:
        _must_listen(address)
        from jobs.rayside.hand import Hand  # ray only now: what it lacks is told as a sentence

        hand = Hand(address)
    except ImportError as error:
        say({"failed": f"the controller's Python {sys.executable} has no Ray that can be used: {error}"})
        return EXIT_FAILED
    except Exception as error:
        # The boundary of the start: whatever Ray raises is the answer.
        log.warning("no connection to Ray", exc_info=True)
        say({"failed": f"no connection to Ray at {address}: {_words(error)}"})
        return EXIT_FAILED
    say({"ready": {"ray": hand.ray_version, "session": hand.session}})
    try:
        if options.watch:
            from jobs.rayside.watching import Watching

            Watching(say).run(waiting)
        else:
            serve(hand.calls(), waiting.get, say)
    finally:
        hand.close()
    return 0


def _must_listen(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), LISTEN_SECONDS).close()


def _words(error: Exception) -> str:
    return one_line(str(error)) or type(error).__name__


if __name__ == "__main__":
    # Not by the usual way out, which a thread that reads the input would turn into a crash.
    os._exit(main(sys.argv[1:]))
