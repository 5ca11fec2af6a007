"""``python -m jobs.controller``: its arguments, its log and its exit code.

Exit codes: 0 stopped when asked to, 1 refused (another one serves the store, the store cannot be used), 70 a mistake of
ours. A supervisor starts it again after anything but 0 and 1.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import logging.handlers
import sys
from pathlib import Path

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


def main(arguments: list[str]) -> int:
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
