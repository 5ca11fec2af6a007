"""``python -m jobs.controller``: its arguments, its log and its exit code.

Without a word before its options it serves until told to stop. ``restore`` puts a backup of the journal in its place,
``backups`` lists them; each prints one line of JSON.

Exit codes: 0 done, or stopped when asked to; 1 refused (another one serves the store, the store cannot be used); 70 a
mistake of ours. A supervisor starts it again after anything but 0 and 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import logging
import logging.handlers
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.controller.backup import backups, restore
from jobs.controller.door import StoreLock
from jobs.controller.service import Settings, serve
from jobs.errors import RaydeckError, Refused

LOG_BYTES = 5 * 1024 * 1024
LOG_FILES_KEPT = 3
EXIT_MISTAKE = 70


def _settings(arguments: list[str]) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m jobs.controller", description="The single writer of a Ray cluster")
    parser.add_argument("--store", required=True, type=Path, help="folder for the journal, the socket and the log")
    parser.add_argument("--dashboard", required=True, help="Ray's dashboard, such as http://127.0.0.1:8265")
    parser.add_argument("--cluster", type=Path, help="the cluster file")
    parser.add_argument("--supervised-by", choices=("systemd", "none"), default="none")
    options = parser.parse_args(arguments)
    dashboard = str(options.dashboard)
    return Settings(
        store=options.store.absolute(),
        dashboard=dashboard if "://" in dashboard else f"http://{dashboard}",
        cluster_file=options.cluster,
        supervised_by=options.supervised_by,
    )


def _log_to(store: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(
        store / "controller.log", maxBytes=LOG_BYTES, backupCount=LOG_FILES_KEPT, encoding="utf-8"
    )
    (store / "controller.log").chmod(0o600)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


def _serve(arguments: list[str]) -> int:
    """Run until told to stop; the exit code."""
    settings = _settings(arguments)
    lock = StoreLock(settings.store)
    try:
        try:
            # Others may pass through to the socket, and see nothing else.
            settings.store.mkdir(mode=0o711, parents=True, exist_ok=True)
            lock.acquire()
            _log_to(settings.store)
        except OSError as error:
            raise Refused(f"the store {settings.store} cannot be used: {error.strerror}") from error
        asyncio.run(serve(settings, lock))
    except RaydeckError as error:
        if logging.getLogger().handlers:  # without the lock the log is another one's
            logging.getLogger(__name__).error("refused: %s", error)
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception:
        logging.getLogger(__name__).exception("ended by a mistake")
        sys.stderr.write("the controller ended by a mistake of its own; controller.log in its store says which\n")
        return EXIT_MISTAKE
    finally:
        lock.release()
    return 0


def _restore(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.controller restore", description="Put a backup in place")
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="this file instead of the newest whole backup")
    options = parser.parse_args(arguments)
    store = options.store.absolute()
    lock = StoreLock(store)
    try:
        try:
            lock.acquire()
        except OSError as error:
            raise Refused(f"the store {store} cannot be used: {error.strerror}") from error
        source = options.source.absolute() if options.source is not None else None
        return _say(restore(store, source, _own_name(), time.time()))
    except RaydeckError as error:
        return _say({"event": "failed", "reason": error.sentence, "hint": error.hint})
    finally:
        lock.release()


def _backups(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.controller backups", description="List the backups")
    parser.add_argument("--store", required=True, type=Path)
    store = parser.parse_args(arguments).store.absolute()
    found = [{**asdict(backup), "path": str(backup.path)} for backup in backups(store)]
    return _say({"event": "backups", "backups": found})


def _say(answer: dict[str, Any]) -> int:
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if answer["event"] == "failed" else 0


def _own_name() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return f"uid {os.getuid()}"


def main(arguments: list[str]) -> int:
    """Do what the first word says; the exit code."""
    if arguments[:1] == ["restore"]:
        return _restore(arguments[1:])
    if arguments[:1] == ["backups"]:
        return _backups(arguments[1:])
    return _serve(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
